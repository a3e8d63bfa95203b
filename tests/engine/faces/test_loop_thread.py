"""`LoopThread`: results, errors, Ctrl-C and the end."""

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from engine.errors import EngineDeadError
from engine.faces.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


def test_a_result_comes_back(thread: LoopThread) -> None:
    async def where() -> tuple[int, bool]:
        await asyncio.sleep(0)
        return threading.get_ident(), thread.is_current

    ident, is_current = thread.run(where())
    assert ident != threading.get_ident() and is_current and not thread.is_current


def test_an_error_comes_back(thread: LoopThread) -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        thread.run(fail())


def test_ctrl_c_cancels_the_call_and_waits_for_its_end(thread: LoopThread) -> None:
    ends = []

    async def stay() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append("cancelled")

    with pytest.raises(KeyboardInterrupt):
        thread.run(stay())
    assert ends == ["cancelled"]


def test_after_the_end_calls_are_refused_and_what_ran_is_cancelled(thread: LoopThread) -> None:
    has_begun, ends = threading.Event(), []

    async def stay() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.run(stay())
        except EngineDeadError:
            ends.append("dead")

    caller = threading.Thread(target=call)
    caller.start()
    has_begun.wait()
    thread.close()
    caller.join()
    assert ends == ["dead"]
    thread.close()
    with pytest.raises(EngineDeadError):
        thread.run(stay())


def test_its_own_thread_may_end_it(thread: LoopThread) -> None:
    async def close() -> None:
        thread.close()

    thread.run(close())
    thread._thread.join()
