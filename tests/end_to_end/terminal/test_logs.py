"""A JSON log is JSON throughout: every line of every process, whatever happens to them."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.root import ROOT

SHORT = {"max_output_tokens": 10}


def events(log: str) -> list[dict[str, Any]]:
    """Each line; raises ValueError for one that is no object of JSON."""
    found = [json.loads(line) for line in log.splitlines()]
    for event in found:
        assert {"event", "level", "timestamp", "process"} <= event.keys(), event
    return found


@pytest.mark.slow
@pytest.mark.row("L10")
async def test_every_line_of_a_json_log_is_json_through_starts_deaths_and_the_end(
    oracle_model: Path, tmp_path: Path
) -> None:
    server = Server(tmp_path / "data", oracle_model, PARLEY_LOG_FORMAT="json")
    try:
        server.start()
        async with Client(server) as client:
            session = await client.new_session()
            answer = await client.done(await client.ask(session, "5", settings=SHORT))
            assert answer.final
            for frame in ("{", '{"type": "no such"}', '{"type": "response.create"}'):
                await client.socket.send(frame)
            for _ in range(3):
                await client.next("error")
            for number in range(5):  # refused, when nobody is there any more
                await client.send(
                    "response.create", session_id="none", idempotency_key=f"k{number}", input="5"
                )
        assert server.get("/nowhere")[0] == 404
        killed = {}
        for child in ("engine.core", "server.worker", "redis-server"):
            (before,) = server.children(child)
            server.kill_child(child)
            killed[child] = before.pid
        for child, pid in killed.items():
            wait_for(partial(is_replaced, server, child, pid), PATIENCE)
        assert server.stop() == 0
        found = events(server.log(None))
    finally:
        server.close()
    names = {event["event"] for event in found}
    assert {"redis is up", "the model is ready", "core died", "worker died", "redis died"} <= names
    assert {event["process"] for event in found} >= {"supervisor", "core"}
    (running,) = [event for event in found if event["event"] == "parley is running"]
    assert running["login_url"].startswith(f"{running['url']}/login?code=")


def is_replaced(server: Server, child: str, before: int) -> bool:
    return any(it.pid != before for it in server.children(child)) and server.is_ready()


@pytest.mark.row("L10")
@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--no-such-option"], {}),
        (["--port", "many"], {}),
        (["--port", "-1"], {}),
        ([], {"PARLEY_NO_SUCH_SETTING": "1"}),
        (["--model", "/no/such/model"], {}),
        (["--data-dir", "/dev/null/data"], {}),
    ],
    ids=["option", "value", "setting", "name", "model", "folder"],
)
def test_a_start_that_fails_is_reported_in_json(
    arguments: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    inherited = {name: value for name, value in os.environ.items() if "PARLEY" not in name}
    own = {"PARLEY_LOG_FORMAT": "json", "PARLEY_PORT": "0", "PARLEY_DATA_DIR": str(tmp_path / "d")}
    done = subprocess.run(
        [sys.executable, "-m", "server", "serve", *arguments],
        cwd=ROOT,
        env=inherited | own | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    found = events(done.stdout + done.stderr)
    assert found[-1]["level"] == "error"


FAULTS = """
import gc, logging, os, sys, threading, warnings
from server.telemetry.logs import configure_logs
configure_logs("info", "json", "worker-1")
warnings.warn("of a library")
logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=ValueError("x"))
logging.getLogger("x").error("%d", "not a number")  # so that logging itself fails
print("printed\\nin two lines")
print("on stderr", file=sys.stderr)
def fail():
    raise KeyError("in a thread")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
class Careless:
    def __del__(self):
        raise OSError("ignored")
Careless()
raise RuntimeError("of the process")
"""


@pytest.mark.row("L10")
def test_what_python_and_libraries_print_by_themselves_is_json() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    found = events(done.stdout) + events(done.stderr)
    assert [event["event"] for event in events(done.stdout)] == ["printed", "in two lines"]
    names = [event["event"] for event in found]
    assert "on stderr" in names
    assert any("of a library" in event for event in names)
    exceptions = "\n".join(str(event.get("exception")) for event in found)
    for words in ("in a thread", "ignored", "of the process"):
        assert words in exceptions
    assert names.count("uncaught exception") == 1
