"""Servers to measure: `parley serve` as users run it, unpaced, in a directory that goes away."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sessions.directory.credentials import Credentials
from sessions.directory.users import Users
from sessions.store.store import SessionStore
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import build_oracle_model


@contextlib.contextmanager
def running_server(
    model: Path | None = None, kind: type[Server] = Server, **environment: str
) -> Iterator[Server]:
    """A ready server; without a `model`, the one that counts."""
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            model = build_oracle_model(Path(folder) / "oracle")
        settings = {"PARLEY_PACE": "0", **environment}
        server = kind(Path(folder) / "data", model, None, **settings)
        try:
            yield server.start()
        finally:
            server.close()


async def user_tokens(server: Server, num_users: int) -> list[str]:
    """Tokens of so many new users: everybody hears of everything that their own tabs do."""
    store = await SessionStore.open(server.redis_url)
    try:
        users = Users(store.client, store.keys)
        credentials = Credentials(store.client, store.keys)
        made = [await users.create(f"user {number}") for number in range(num_users)]
        return [await credentials.create_token(user.uid) for user in made]
    finally:
        await store.close()
