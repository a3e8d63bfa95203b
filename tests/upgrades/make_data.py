"""Make the data directory that a later version must open: `python -m tests.upgrades.make_data DIR`.

Run it with the version whose data is to be kept. It uses the product as users do: chats with
branches, a stopped answer, a fork, an import, a share link, users, tokens, a cookie, a login code.
Beside the data it writes `expected.json`: what this version answered, and the secrets to ask with.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from tests.end_to_end.clients.http_client import Http, admin_token, fresh_key
from tests.end_to_end.frames.raw import log_in, login_path
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import build_oracle_model, oracle_word

GREEDY = {"temperature": 0, "max_output_tokens": 12}
LONG = {"temperature": 0, "max_output_tokens": 900}  # its text is stored compressed
STOPPED = {"temperature": 0, "max_output_tokens": 2000}
KEPT = ("token", "admin-token", "redis/appendonly.aof")


async def use(server: Server) -> dict[str, Any]:
    """Do what users do; returns what is to be found again."""
    admin = admin_token(server)
    async with Http(server) as http, Http(server, admin) as operator, Client(server) as client:
        branched = await client.new_session()
        first = await answer_id(client, await client.ask(branched, oracle_word(1), settings=GREEDY))
        again = await client.reply(
            "response.create",
            session_id=branched,
            idempotency_key="again",
            regenerate_of=first,
            settings=GREEDY,
        )
        await answer_id(client, again["response"]["id"])
        edited = await client.ask(branched, oracle_word(60), settings=GREEDY, parent_id=None)
        await answer_id(client, edited)
        await client.reply("session.update", session_id=branched, title="Drei Äste", pinned=True)

        stopped = await client.new_session()
        running = await client.ask(stopped, oracle_word(5), settings=STOPPED)
        await client.deltas(running, 5)
        await client.send("stop", response_id=running)
        await client.done(running)

        long = await client.new_session()
        await answer_id(client, await client.ask(long, oracle_word(9), settings=LONG))
        shared = await http.post(f"/v1/sessions/{long}/share")
        fork = await http.post(
            f"/v1/sessions/{branched}/fork", {"message_id": first}, headers=fresh_key()
        )
        export = (await http.get(f"/v1/sessions/{branched}/export?format=json")).json()
        imported = await http.post("/v1/sessions/import", export, headers=fresh_key())
        assert shared.status_code in (200, 201) and imported.status_code == 201
        created = await operator.post("/v1/admin/users", {"name": "Ada"})
        assert created.status_code == 201, created.text
        async with Http(server, created.json()["token"]) as ada:
            await ada.new_session(title="Ada's")
            her_sessions = (await ada.get("/v1/sessions")).json()
        share_path = shared.json()["path"]
        sessions = {branched, stopped, long, fork.json()["id"], imported.json()["id"]}
        return {
            "made_at": int(time.time() * 1000),
            "her_token": created.json()["token"],
            "her_sessions": her_sessions,
            "cookie": await log_in(server),
            "login_path": await login_path(server),
            "share_path": share_path,
            "logs": {
                rid: server.get(f"/v1/responses/{rid}?stream=true&starting_after=0")[1].decode()
                for rid in (running, edited)
            },
            "answers": {
                path: server.get_json(path)
                for path in (
                    "/v1/sessions",
                    share_path,
                    *(f"/v1/sessions/{one}" for one in sorted(sessions)),
                    *(f"/v1/sessions/{one}/messages" for one in sorted(sessions)),
                    *(f"/v1/sessions/{one}/export?format=json" for one in sorted(sessions)),
                )
            },
            "users": (await operator.get("/v1/admin/users")).json(),
            "audit": (await operator.get("/v1/admin/audit")).json(),
        }


async def answer_id(client: Client, response_id: str) -> str:
    """Wait for the end of a response; the id of its message."""
    answer = await client.done(response_id)
    assert answer.done is not None
    await client.next("message.updated")
    return str(answer.done["response"]["message_id"])


def rewrite(server: Server) -> None:
    """Leave of the append-only file what is needed to make the data again, as plain commands."""
    with redis.Redis(unix_socket_path=server.redis_url.removeprefix("unix://")) as client:
        client.config_set("aof-use-rdb-preamble", "no")
        client.bgrewriteaof()
        wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="parley-data-") as folder:
        model = build_oracle_model(Path(folder) / "oracle")
        server = Server(Path(folder) / "data", model, PARLEY_PACE="200").start()
        try:
            expected = asyncio.run(use(server))
            rewrite(server)
        finally:
            server.close()
        for name in KEPT:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((server.data_dir / name).read_bytes())
        (target / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
