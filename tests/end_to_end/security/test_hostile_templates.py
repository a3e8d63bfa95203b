"""The author of a model's folder writes its chat template, and freezes nobody by it."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.engine.client.templates.test_chat_template import HOSTILE, LOOP
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import ORACLE_CHAT_TEMPLATE, oracle_answer, oracle_word

BOMB = oracle_word(404)
LATE = f"{{% if '{BOMB.strip()}' in messages[-1].content %}}{LOOP}{{% endif %}}"
SETTINGS = {"temperature": 0, "max_output_tokens": 300}


def with_template(model: Path, folder: Path, template: str) -> Path:
    """A copy of the model whose template stands in a file of its own."""
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.row("B69")
@pytest.mark.parametrize(
    "name", ["loop", "memory", *(pytest.param(n, marks=pytest.mark.slow) for n in ("power", "big"))]
)
def test_a_folder_with_a_hostile_template_is_refused_in_one_line(
    oracle_model: Path, tmp_path: Path, name: str
) -> None:
    folder = with_template(oracle_model, tmp_path / "model", HOSTILE[name])
    server = Server(tmp_path / "data", folder)
    server.begin_start()
    assert server.process is not None
    try:
        assert server.process.wait(PATIENCE) == 2
        (line,) = server.log().splitlines()
        file = folder / "chat_template.jinja"
        assert f"{file}: chat_template: the chat template has left its bounds" in line
    finally:
        server.close()


@pytest.fixture(scope="module")
def late(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose template loops over one word, and is in order otherwise."""
    root = tmp_path_factory.mktemp("late")
    folder = with_template(oracle_model, root / "model", LATE + ORACLE_CHAT_TEMPLATE)
    server = Server(root / "data", folder, None, **TESTING, PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


def renderers(server: Server) -> list[int]:
    """The processes that render templates; several while one replaces another."""
    (worker,) = server.children("server.worker")
    found = [child.pid for child in worker.children() if is_renderer(child)]
    return sorted(found)


def is_renderer(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("templates/child.py") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.row("B69")
async def test_a_content_that_the_template_loops_over_ends_that_request_only(
    late: Server,
) -> None:
    before = renderers(late)
    assert len(before) == 1
    async with Client(late) as victim, Client(late) as attacker:
        session, other = await victim.new_session(), await victim.new_session()
        writing = await victim.ask(session, oracle_word(0), settings=SETTINGS)
        await victim.deltas(writing, 3)
        key = {"session_id": await attacker.new_session(), "idempotency_key": "bomb"}
        refusal = asyncio.create_task(attacker.reply("response.create", input=BOMB, **key))
        stopped = await victim.ask(other, oracle_word(1000), settings=SETTINGS)
        await victim.send("stop", response_id=stopped)
        ended = (await victim.done(stopped)).done
        assert ended is not None and ended["response"]["status"] == "cancelled"
        frame = await refusal
        error = frame["error"]
        assert (frame["type"], error["code"], error["param"]) == ("error", "invalid_field", "input")
        assert "the model's chat template takes too much time or memory" in error["message"]
        assert (await victim.done(writing)).final == oracle_answer(0, 300)
        again = await attacker.ask(key["session_id"], oracle_word(7), settings=SETTINGS)
        assert (await attacker.done(again)).final == oracle_answer(7, 300)
    assert late.get("/readyz")[0] == 200
    assert len(renderers(late)) == 1 and renderers(late) != before
    assert "Traceback" not in late.log(None)


@pytest.mark.row("B69")
async def test_a_renderer_that_is_killed_is_replaced_unnoticed(late: Server) -> None:
    (pid,) = renderers(late)
    psutil.Process(pid).kill()
    async with Client(late) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=SETTINGS)
        assert (await client.done(response)).final == oracle_answer(0, 300)
    assert renderers(late) != [pid]


async def test_the_renderer_ends_with_its_worker(late: Server) -> None:
    (pid,) = renderers(late)
    renderer = psutil.Process(pid)
    late.kill_child("server.worker")
    await asyncio.to_thread(wait_for, lambda: not renderer.is_running())
    await asyncio.to_thread(wait_for, lambda: late.get("/readyz")[0] == 200)
