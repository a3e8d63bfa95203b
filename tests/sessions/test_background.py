"""Background tasks: refusals that nobody waits for are dropped, bugs are logged once, and by us."""

import ast
import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sessions.background import Background, first_of, start
from sessions.model.errors import SessionNotFound
from tests.helpers.root import ROOT


class Refusal(Exception):
    """As `ApiError`."""


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.fixture
async def reported_by_asyncio() -> AsyncIterator[list[dict[str, Any]]]:
    """What the loop has to say of tasks that failed unseen."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    yield reported
    gc.collect()
    assert reported == []


@pytest.mark.row("M5")
@pytest.mark.usefixtures("reported_by_asyncio")
@pytest.mark.parametrize("error", [Refusal(), SessionNotFound()])
async def test_a_refusal_that_nobody_waits_for_is_dropped(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    background = Background(Refusal)
    background.spawn(fail(error))
    await background.wait(1.0)
    assert caplog.records == []


@pytest.mark.row("M5")
@pytest.mark.usefixtures("reported_by_asyncio")
async def test_a_bug_in_the_background_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    background = Background(Refusal)
    background.spawn(fail(KeyError("a bug")))
    await background.wait(1.0)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "background task failed")
    assert record.exc_info is not None and isinstance(record.exc_info[1], KeyError)


@pytest.mark.row("M5")
@pytest.mark.usefixtures("reported_by_asyncio")
@pytest.mark.parametrize(("error", "num_logged"), [(Refusal(), 0), (KeyError("a bug"), 1)])
async def test_what_is_seen_through_goes_on_without_its_caller_and_logs_only_bugs(
    error: Exception, num_logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    background, go_on, has_gone_on = Background(Refusal), asyncio.Event(), False

    async def work() -> None:
        nonlocal has_gone_on
        await go_on.wait()
        has_gone_on = True
        raise error

    caller = start(background.see_through(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    go_on.set()
    await background.wait(1.0)
    assert has_gone_on
    assert len(caplog.records) == num_logged


@pytest.mark.row("M5")
@pytest.mark.usefixtures("reported_by_asyncio")
async def test_only_those_who_wait_get_the_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(KeyError):
        await Background().see_through(fail(KeyError("a bug")))
    with pytest.raises(KeyError):
        await start(fail(KeyError("a bug")))
    assert caplog.records == []


async def test_close_ends_what_is_left() -> None:
    background, was_cancelled = Background(), False

    async def work() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    background.spawn(work())
    await asyncio.sleep(0)
    await background.close()
    assert was_cancelled


async def test_the_first_of_several_ends_the_others() -> None:
    was_cancelled = False

    async def wait() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    (failed,) = await first_of(wait(), fail(KeyError("a bug")))
    assert isinstance(failed.exception(), KeyError) and was_cancelled


# Each waits for what it starts, and raises what it raises; all others leave that to `Background`.
WAITING = {"background.py", "beam_search.py", "generation_result.py", "llm.py", "loop_thread.py"}


@pytest.mark.row("M5")
def test_no_other_module_starts_tasks() -> None:
    paths = [
        path for name in ("server", "sessions", "engine") for path in (ROOT / name).rglob("*.py")
    ]
    starts = {"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"}
    found = [
        path.name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in starts
    ]
    assert set(found) == WAITING
