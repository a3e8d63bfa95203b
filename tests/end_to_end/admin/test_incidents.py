"""The incidents of docs/operations.md happen, and what the page says is what one sees and types.

The commands are read from the page: each must be run, and every word in its tables must come.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import answering, new_user
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.planted_faults import DEADLY_TOKENS, plant
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "operations.md").read_text()
SECTION = PAGE.partition("\n## An incident, step by step\n")[2].partition("\n## ")[0]
FENCE = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHORT = {"temperature": 0, "max_output_tokens": 20}


def commands_of(part: str) -> list[str]:
    return [line for block in FENCE.findall(part) for line in block.splitlines()]


class Walk:
    """One incident of the page, and a shell of the operator's, where `data/` lies."""

    def __init__(self, server: Server, heading: str) -> None:
        """`heading` empty: what comes before the first incident."""
        before, *parts = re.split(r"^### (.+)\n", SECTION, flags=re.MULTILINE)
        texts = dict(zip(parts[::2], parts[1::2], strict=True)) | {"": before}
        self.text = texts[heading]
        self.left = commands_of(self.text)
        opening = commands_of(before)[:2]
        self._opening = "\n".join(opening).replace("http://127.0.0.1:8000", server.url)
        if not heading:
            del self.left[:2]
        self._server = server
        folder = server.data_dir.parent
        program = f'#!/bin/sh\nexec {sys.executable} -P "$@"\n'
        self._write(folder / ".venv/bin/python", program)
        self._write(folder / ".venv/bin/parley", program.replace('"$@"', '-m server "$@"'))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
        path = f"{folder / '.venv/bin'}:{os.environ['PATH']}"
        self._environment = {**inherited, "PATH": path, "PYTHONPATH": str(ROOT), "TERM": "xterm"}

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o700)

    async def types(self, beginning: str, **variables: str) -> str:
        """Run the next command of the page, which begins so; what it prints."""
        command = self.left.pop(0)
        assert command.startswith(beginning), (command, beginning)
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", f"{self._opening}\n{command}"],
            cwd=self._server.data_dir.parent,
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    async def reads(self, event: str, **fields: object) -> dict[str, Any]:
        """The last line of the log with this event, which the page tells of, when it has come."""
        assert f"`{event}`" in self.text, event

        def lines() -> list[dict[str, Any]]:
            found = [json.loads(line) for line in self._server.log(None).splitlines() if line]
            return [
                line for line in found if line["event"] == event and fields.items() <= line.items()
            ]

        await asyncio.to_thread(wait_for, lambda: bool(lines()), PATIENCE)
        return lines()[-1]

    def ends(self) -> None:
        assert self.left == []


@pytest.fixture
def start(oracle_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A server whose data lie in `data/`."""
    servers = []

    def started(prepare: Callable[[Server], None] = lambda server: None, **more: str) -> Server:
        environment = {**TESTING, "PARLEY_PACE": "100", **more}
        server = Server(tmp_path / "data", oracle_model, None, **environment)
        servers.append(server)
        prepare(server)
        return server.start()

    yield started
    for server in servers:
        server.close()


async def is_over(walk: Walk) -> None:
    """As the page says that one knows it."""
    async with asyncio.timeout(PATIENCE):
        while json.loads(await walk.types('curl -sS "$url/readyz"')) != {"status": "ok"}:
            walk.left.insert(0, 'curl -sS "$url/readyz"')
            await asyncio.sleep(0.2)  # as an operator would
    walk.ends()


async def test_an_engine_that_dies_once_and_one_that_an_answer_kills(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    server = start(PYTHONPATH=plant(tmp_path))
    before, walk = Walk(server, ""), Walk(server, "The engine dies")
    async with Client(server) as client:
        _, response = await answering(client)
        notice = json.loads(await before.types("admin -X PUT"))["notice"]
        assert (await client.next("notice.updated"))["notice"]["text"] == notice["text"]
        server.kill_child("engine.core")
        died = await walk.reads("core died")
        assert (died["status"], died["restart_in_seconds"]) == (-9, 0.0)
        await walk.reads("connection degraded", engine="unavailable")
        assert (await client.next("connection.degraded"))["engine"] == "unavailable"
        assert "status" in json.loads(await walk.types('curl -sS "$url/readyz"'))
        assert "engine" in await walk.types("parley workers list")
        assert (await walk.reads("core serves again"))["after_seconds"] > 0
        await client.next("connection.restored")
        shown = client.answers[response].num_deltas
        await client.deltas(response, shown + 5)  # it goes on
        await client.send("stop", response_id=response)
        assert oracle_answer(0, 2000).startswith((await client.done(response)).final)

        poisoned = await client.new_session(title="poison")
        words = " ".join(oracle_word(0) for _ in range(DEADLY_TOKENS))
        deadly = await client.ask(poisoned, words, settings=SHORT)
        failed = await client.done(deadly)
        assert failed.done is not None and failed.done["response"]["status"] == "failed"
        line = await walk.reads("engine error", session_id=poisoned)
        assert line["response_id"] == deadly
        culprit = "2 engine cores died before it had another token"
        assert f"`resp_…: {culprit}`" in walk.text and f"{deadly}: {culprit}" in server.log(None)
        names = {"response": line["response_id"], "session": line["session_id"]}
        told = json.loads(await walk.types('admin "$url/v1/admin/responses', **names))
        assert told["user"] == {"id": "local"}
        assert poisoned in await walk.types("parley sessions --find", **names)
        await walk.types("parley sessions evict", **names)
        assert await client.closed() == 4410
    await is_over(walk)
    async with Client(server) as client:
        await client.reply("session.subscribe", session_id=poisoned)
        refused = await client.reply(
            "response.create", session_id=poisoned, idempotency_key="k", input="5"
        )
        assert refused["error"]["code"] == "session_locked"
        await before.types("admin -X DELETE")
    before.ends()


async def test_a_user_who_floods_is_found_limited_and_kept_out(
    start: Callable[..., Server],
) -> None:
    limits = {"PARLEY_MAX_CONNECTIONS_PER_USER": "6", "PARLEY_MAX_NUM_SEQS": "2"}
    server = start(**limits)
    walk = Walk(server, "One user floods")
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Http(server, admin_token(server)))
        flooder = await new_user(admin, name="Flood")
        user = {"user": flooder["id"]}

        async def connect() -> Client:
            client = Client(server, token=flooder["token"])
            return await stack.enter_async_context(client)

        sockets = [await connect() for _ in range(6)]
        for _ in range(3):  # a script that opens more and more
            assert await (await connect()).closed() == 4429
        line = await walk.reads("connections are refused")
        assert (line["user"], line["limit"]) == (user["user"], "PARLEY_MAX_CONNECTIONS_PER_USER")
        chats = []
        for number in range(12):
            socket = sockets[number % 6]
            session = await socket.new_session()
            settings = {"temperature": 0, "max_output_tokens": 1500}
            chats.append((session, await socket.ask(session, oracle_word(0), settings=settings)))
        async with Client(server) as other:  # is served all the same
            session = await other.new_session()
            answer = await other.done(await other.ask(session, oracle_word(3), settings=SHORT))
            assert answer.final == oracle_answer(3, 20)
        told = json.loads(await walk.types('admin "$url/v1/admin/busiest"'))
        assert told["users"][0] == {
            "user": {"id": user["user"], "name": "Flood"},
            "connections": 6,
            "answers": 12,
        }
        assert told["addresses"][0]["refused"] == 3
        assert (await walk.types("parley sessions --once")).count("Flood") == 12
        assert "Flood" in await walk.types("parley users quotas")

        limited = json.loads(await walk.types('admin -X PATCH "$url/v1/admin/users', **user))
        assert limited["quotas"]["answers"] == 1
        another = await sockets[0].new_session()
        refused = await sockets[0].reply(
            "response.create", session_id=another, idempotency_key="k", input="5"
        )
        assert refused["error"]["quota"] == "user.answers"
        await walk.types("parley sessions stop", session=chats[0][0])
        ended = await sockets[0].done(chats[0][1])
        assert ended.done is not None and ended.done["response"]["status"] == "cancelled"
        await walk.types("parley users disable", **user)
        assert {await socket.closed() for socket in sockets} == {4403}
        for _, response in chats:
            run = (await admin.get(f"/v1/admin/responses/{response}")).json()
            assert (run["status"], run["reason"]) == ("cancelled", "admin_cancelled")
        async with asyncio.timeout(PATIENCE):
            while user["user"] in await walk.types('admin "$url/v1/admin/busiest"'):
                walk.left.insert(0, 'admin "$url/v1/admin/busiest"')
        assert "may come in" in await walk.types("parley users enable", **user)
        freed = json.loads(await walk.types('admin -X PATCH "$url/v1/admin/users', **user))
        assert freed["quotas"]["answers"] is None and not freed["disabled"]
        async with Client(server, token=flooder["token"]) as back:
            await back.next("connection.ready")
    walk.ends()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        # Only root may, and not in every container: a full disk cannot be had without one.
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def redis_on(folder: Path) -> Callable[[Server], None]:
    """Prepares a server whose Redis keeps its files there."""

    def prepare(server: Server) -> None:
        server.data_dir.mkdir(mode=0o700)
        (server.data_dir / "redis").symlink_to(folder)

    return prepare


def fill(folder: Path, spare: int = 0) -> Path:
    """Write a file until the disk is full, or so many bytes are left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while shutil.disk_usage(folder).free > spare:
            file.write(bytes(4096))
    return path


async def test_redis_has_no_room_on_its_disk_and_gets_some(
    start: Callable[..., Server], small_disk: Path
) -> None:
    server = start(redis_on(small_disk))
    walk = Walk(server, "The disk is full")
    async with Http(server, admin_token(server)) as admin, Client(server) as client:
        session, response = await answering(client)
        filler = fill(small_disk, spare=1 << 20)
        await walk.reads("the disk of the data directory is nearly full")
        fill(small_disk)
        degraded = await walk.reads("connection degraded", store="unavailable")
        for word in ("MISCONF", "No space left on device"):
            assert word in degraded["reason"] and word in walk.text
        told = json.loads(await walk.types('admin "$url/v1/admin/health"'))["redis"]
        assert told["state"] == "unavailable" and "MISCONF" in told["problems"][0]
        status, body = await asyncio.to_thread(server.get, "/readyz")
        assert (status, json.loads(body)["store"]) == (503, "unavailable")
        assert str(small_disk) in await walk.types("df -h data/redis")
        assert "data" in await walk.types("du -ah data")
        refused = await client.reply("session.update", session_id=session, title="x")
        assert refused["error"]["code"] == "store_unavailable"
        denied = await admin.post(f"/v1/admin/sessions/{session}/stop")
        assert denied.status_code == 503
        assert (await admin.get(f"/v1/admin/sessions/{session}")).status_code == 200
        shown = client.answers[response].num_deltas
        await client.deltas(response, shown + 10)
        filler.unlink()
        await walk.reads("connection restored", store="ok")
        await client.send("stop", response_id=response)
        done = await client.done(response)
        assert oracle_answer(0, 2000).startswith(done.final) and done.final
        await walk.types(".venv/bin/python -c")
        stored = json.loads(await walk.types('admin "$url/v1/admin/users', user="local"))
        assert (stored["sessions"], stored["messages"]) == (1, 2)
        walk.left, left = walk.left[:1], walk.left[1:]
        await is_over(walk)
        walk.left = left
    assert [command[:5] for command in left] == ["admin"]  # of the log's disk, below


async def test_the_disk_of_the_log_is_full_and_gets_room(
    start: Callable[..., Server], small_disk: Path
) -> None:
    log = small_disk / "log"

    def log_there(server: Server) -> None:
        server._log.close()
        server._log = log.open("ab")

    server = start(log_there)
    walk = Walk(server, "The disk is full")
    walk.left = walk.left[-1:]
    async with Client(server) as client:
        filler = fill(small_disk)
        for number in range(30):  # until what is left of the last block is full, too
            session = await client.new_session()
            answer = await client.done(
                await client.ask(session, oracle_word(number), settings=SHORT)
            )
            assert answer.final == oracle_answer(number, 20)  # nobody notices
            if server.metric("parley_log_lines_lost_total"):
                break
        metrics = await walk.types('admin "$url/metrics"')
        assert float(re.findall(r"^parley_log_lines_lost_total (\S+)", metrics, re.M)[0]) > 0
        async with Http(server, admin_token(server)) as admin, asyncio.timeout(PATIENCE):
            while True:
                (worker,) = (await admin.get("/v1/admin/replicas")).json()["replicas"]
                if worker["log_lines_lost"]:
                    break
                await asyncio.sleep(0.05)  # it reports twice a second
        filler.unlink()
        await client.done(await client.ask(session, oracle_word(1), settings=SHORT))
    (told,) = [line for line in log.read_text().splitlines() if "of this log are lost" in line]
    assert json.loads(told)["level"] == "warning"
    walk.ends()
