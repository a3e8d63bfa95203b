"""`EngineGroup`: several engines are one to the server."""

import asyncio

import msgspec
import pytest

from engine import AsyncLLM
from server.engines.client import (
    CoreState,
    EngineDeadError,
    Exactness,
    QueueOverflowError,
    RetryableRequestError,
    ValidationError,
)
from tests.server.helpers.scripted_links import CONTEXT, Site


async def test_arguments_that_are_wrong_are_refused_by_name(site: Site) -> None:
    reader = site.read("r", prompt=[5] * (CONTEXT + 1))
    await reader.task
    assert isinstance(reader.error, ValidationError)
    site.read("twice")
    await site.settle()
    again = site.read("twice")
    await again.task
    assert isinstance(again.error, ValidationError) and again.error.parameter == "request_id"


async def test_after_a_shutdown_nothing_waits(site: Site) -> None:
    reader = site.read("r")
    waiting = asyncio.create_task(site.group.wait_ready())
    await waiting
    await site.settle()
    site.group.shutdown()
    await reader.task
    assert isinstance(reader.error, EngineDeadError)
    with pytest.raises(EngineDeadError):
        await site.group.wait_ready()
    late = site.read("late")
    await late.task
    assert isinstance(late.error, RetryableRequestError | EngineDeadError)


async def test_the_group_answers_as_long_as_one_of_them_does(site: Site) -> None:
    assert site.group.is_ready and site.group.core_state is CoreState.READY
    site.links["a"].die()
    assert site.group.is_ready and site.states == [CoreState.READY]
    site.links["b"].stall()
    assert not site.group.is_ready and site.states[1:] == [CoreState.STALLED]
    reader = site.read("r")
    await reader.task
    assert isinstance(reader.error, RetryableRequestError)
    with pytest.raises(TimeoutError):
        await site.group.wait_ready(0.01)
    site.links["a"].come()
    await site.group.wait_ready(1.0)
    assert site.states[1:] == [CoreState.STALLED, CoreState.READY]


async def test_answers_are_admitted_by_the_sum_of_what_the_engines_take(site: Site) -> None:
    site.group.check_admission(24)  # 8 places and 4 that may wait at each of them
    with pytest.raises(QueueOverflowError):
        site.group.check_admission(25)
    site.links["a"].load(num_running=8, num_waiting=4)
    site.group.check_admission(12)
    with pytest.raises(QueueOverflowError):
        site.group.check_admission(13)
    site.change("b", is_draining=True)
    with pytest.raises(QueueOverflowError):
        site.group.check_admission()
    site.links["a"].die()
    with pytest.raises(RetryableRequestError):
        site.group.check_admission()


async def test_its_load_and_its_counters_are_their_sums(site: Site) -> None:
    assert site.group.stats is None
    site.links["a"].load(3, 1, num_free=40)
    site.links["b"].load(2, 0, num_free=90)
    stats = site.group.stats
    assert stats is not None
    assert (stats.num_running, stats.num_waiting) == (5, 1)
    assert (stats.num_blocks_total, stats.num_blocks_free) == (200, 130)
    for number in range(4):
        site.read(f"r{number}")
    await site.settle()
    assert await site.group.metrics() == {"requests_total": 4, "device": "none"}


async def test_figures_say_why_an_engine_is_not_ready(site: Site) -> None:
    site.links["b"].die()
    assert [(one.state, one.problem) for one in site.group.figures()] == [
        ("ready", None),
        ("dead", "it died"),
    ]


async def test_it_promises_what_the_worst_of_them_can_keep(site: Site) -> None:
    promised = [site.group.exactness]
    site.links["b"].exactness = Exactness.TOKENS
    promised.append(site.group.exactness)
    assert promised == [Exactness.EXACT, Exactness.TOKENS]


@pytest.mark.parametrize(
    ("one", "other", "rung"),
    [
        ("cpu, 2 threads", "cpu, 2 threads", Exactness.EXACT),
        ("cpu, 2 threads", "", Exactness.EXACT),  # it has not said it
        ("cpu, 2 threads", "cpu, 4 threads", Exactness.TOKENS),
    ],
)
async def test_cores_on_unlike_machines_promise_the_next_token_alone(
    site: Site, one: str, other: str, rung: Exactness
) -> None:
    for member, computes in zip(site.group.members, (one, other), strict=True):
        engine = member.engine
        assert isinstance(engine, AsyncLLM)
        client = engine._client
        assert client.ready is not None
        client.ready = msgspec.structs.replace(client.ready, computes=computes)
    assert site.group.exactness is rung


async def test_prompts_are_as_long_as_the_smallest_context_allows(site: Site) -> None:
    assert site.group.model_config.max_model_len == CONTEXT
