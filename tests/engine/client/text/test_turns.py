"""A newcomer waits for what is being done, and for one item of each who came before."""

import asyncio
import threading

import pytest

from engine.client.text.turns import Turns
from tests.helpers.stepped_executor import SteppedExecutor


def _begin(turns: Turns, done: list[str], *names: str) -> list[asyncio.Task[None]]:
    """An item for each name; the owner is its first letter."""
    return [
        asyncio.create_task(turns.run(name[0], lambda name=name: done.append(name)))  # type: ignore[misc]
        for name in names
    ]


async def test_another_user_waits_for_one_item_at_most() -> None:
    steps, done = SteppedExecutor(), list[str]()
    turns = Turns("test", steps)
    tasks = _begin(turns, done, *(f"a{number}" for number in range(100)))
    await asyncio.sleep(0)
    steps.step()
    tasks += _begin(turns, done, "b0", "b1")
    await asyncio.sleep(0)
    while steps.functions:
        steps.step()
    assert done[:6] == ["a0", "a1", "b0", "a2", "b1", "a3"]
    await asyncio.gather(*tasks)


async def test_who_comes_while_an_item_is_done_is_next() -> None:
    turns, done = Turns("test"), list[str]()
    is_doing, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_doing.set()
        may_go_on.wait()

    tasks = [asyncio.create_task(turns.run("a", hold)), *_begin(turns, done, "a1", "a2")]
    await asyncio.to_thread(is_doing.wait)
    tasks += _begin(turns, done, "b0")
    await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(*tasks)
    assert done == ["b0", "a1", "a2"]


async def test_everybody_has_one_item_a_round() -> None:
    steps, done = SteppedExecutor(), list[str]()
    turns = Turns("test", steps)
    tasks = _begin(turns, done, "a0", "a1", "a2", "b0", "b1", "c0", "c1", "c2")
    await asyncio.sleep(0)
    while steps.functions:
        steps.step()
    assert done == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2"]
    await asyncio.gather(*tasks)


async def test_what_was_cancelled_is_not_done() -> None:
    steps, done = SteppedExecutor(), list[str]()
    turns = Turns("test", steps)
    tasks = _begin(turns, done, "a0", "a1", "a2")
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    while steps.functions:
        steps.step()
    assert done == ["a0", "a2"]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), asyncio.CancelledError, type(None)]


async def test_what_an_item_raises_is_raised_and_the_next_one_is_done() -> None:
    turns = Turns("test")
    with pytest.raises(ZeroDivisionError):
        await turns.run("a", lambda: 1 // 0)
    assert await turns.run("a", lambda: threading.current_thread().name) == "test_0"


def test_event_loops_of_many_threads_share_it() -> None:
    turns, results = Turns("test"), list[int]()

    async def run_many(owner: str) -> None:
        results.extend(await asyncio.gather(*(turns.run(owner, lambda: 1) for _ in range(50))))

    threads = [threading.Thread(target=asyncio.run, args=[run_many(owner)]) for owner in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 200
