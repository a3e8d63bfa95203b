"""What operators' tests share: a user of their own, an answer to look at, the audit."""

import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any

from sessions.store.store import SessionStore
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word

SETTINGS = {"temperature": 0, "max_output_tokens": 2000}  # at 100 tokens/s: longer than any test


async def new_user(admin: Http, **body: Any) -> dict[str, Any]:
    answer = await admin.post("/v1/admin/users", {"name": "Ada", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def for_new_user(server: Server) -> Server:
    """The same server for a user who has no sessions yet."""
    other = copy.copy(server)
    async with Http(server, admin_token(server)) as admin:
        other.token = (await new_user(admin))["token"]
    return other


@contextlib.asynccontextmanager
async def store_of(server: Server) -> AsyncIterator[SessionStore]:
    """To store what no door takes any more."""
    store = await SessionStore.open(server.redis_url, timeout_seconds=PATIENCE)
    try:
        yield store
    finally:
        await store.close()


async def audit(admin: Http, target: str) -> list[str]:
    """The actions on this target, the newest first."""
    answer = await admin.get("/v1/admin/audit?limit=200")
    return [entry["action"] for entry in answer.json()["entries"] if entry["target"] == target]


async def answering(client: Client) -> tuple[str, str]:
    """A session with an answer that is being written."""
    session_id = await client.new_session()
    response_id = await client.ask(session_id, oracle_word(0), settings=SETTINGS)
    await client.deltas(response_id, 2)
    return session_id, response_id
