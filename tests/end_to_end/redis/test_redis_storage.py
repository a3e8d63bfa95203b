"""Redis itself lacks something: the last writes, after a promotion, or room on its disk."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreUnavailable
from tests.end_to_end.site.harness import Client
from tests.end_to_end.site.redis_site import BINARY, HEAL_SECONDS, ask, more, site, whole
from tests.helpers.redis_server import running_redis
from tests.helpers.redis_topology import running_pair
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer


@pytest.mark.slow
@pytest.mark.row("R7")
async def test_what_a_promoted_replica_is_missing_is_written_again(
    oracle_model: Path, tmp_path: Path
) -> None:
    with running_pair(BINARY) as (primary, replica):
        target = f"127.0.0.1:{primary.port}"
        with site(tmp_path, oracle_model, primary.redis, target) as here:
            async with Client(here.server) as client, Client(here.server) as watcher:
                session, response = await ask(client, 500)
                joined = await watcher.reply("session.subscribe", session_id=session)
                await asyncio.to_thread(replica.command, "REPLICAOF", "NO", "ONE")
                title = {"session_id": session, "title": "not replicated"}
                await client.reply("session.update", **title)
                await more(client, response, 30)  # neither are these
                here.proxy.command(f"target 127.0.0.1:{replica.port}")
                here.server.history.is_data_lost = True
                here.kill_redis()
                again = [await c.next("session.subscribed") for c in (client, watcher)][1]
                while again["epoch"] == joined["epoch"]:
                    again = await watcher.next("session.subscribed")
                assert again["recovered"] is False
                assert again["snapshot"]["session"]["title"] != "not replicated"
                here.redis = replica.redis
                await whole(here, client, session, response, 500)
                assert (await watcher.done(response)).final == oracle_answer(0, 500)
                old = {"epoch": joined["epoch"], "offset": joined["offset"]}
                back = await watcher.reply("session.subscribe", session_id=session, after=old)
                assert back["recovered"] is False


def redis_on_a_small_disk(folder: Path, data: Path) -> Path:
    """A program that runs redis-server with 6 MB of disk at `data`, which it alone sees."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not allowed here")
    binary = folder / "redis-on-a-small-disk"
    mount = f"mount -t tmpfs -o size=6m none {data}"
    inner = f'{mount} && exec {BINARY} "$@"'
    binary.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{inner}' x \"$@\"\n")
    binary.chmod(0o700)
    return binary


async def fill_disk(redis: EmbeddedRedis) -> None:
    """Write until Redis refuses."""
    client = RedisClient(redis.url)
    with pytest.raises(StoreUnavailable, match="MISCONF"):
        for number in range(1000):
            await client.call("SET", f"parley:filler:{number}", "x" * 200_000)
    await client.close()


def enlarge(pid: int, data: Path) -> None:
    """Give that process's small file system room."""
    larger = ["mount", "-o", "remount,size=64m", str(data)]
    subprocess.run(["nsenter", "-t", str(pid), "-m", *larger], check=True)


@pytest.mark.row("R10")
@pytest.mark.slow
async def test_reads_go_on_while_a_full_disk_stops_writes(
    oracle_model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "small"
    data.mkdir()
    binary = redis_on_a_small_disk(tmp_path, data)
    with (
        running_redis(str(binary), extra_args=("--dir", str(data))) as redis,
        site(tmp_path, oracle_model, redis) as here,
    ):
        async with Client(here.server) as client:
            session, response = await ask(client, 1500)
            here.server.history.fault("disk full")
            await fill_disk(redis)
            assert (await client.next("connection.degraded"))["store"] == "unavailable"
            refused = await client.reply("session.delete", session_id=session)
            assert refused["error"]["code"] == "store_unavailable"
            status, _ = await asyncio.to_thread(here.server.get, f"/v1/sessions/{session}")
            assert status == 200
            await more(client, response, 10)
            assert redis.pid is not None
            await asyncio.to_thread(enlarge, redis.pid, data)
            room = running_time()
            assert (await client.next("connection.restored"))["store"] == "ok"
            assert running_time() - room < HEAL_SECONDS
            await whole(here, client, session, response, 1500)
