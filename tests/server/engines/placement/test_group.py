"""`EngineGroup`: several engines are one to the server, also when one of them dies."""

import asyncio
from typing import Any

import msgspec
import pytest

from engine import AsyncLLM
from server.engines.client import (
    CANNOT_CONTINUE,
    CoreState,
    EngineDeadError,
    Exactness,
    QueueOverflowError,
    RequestOutputKind,
    RetryableRequestError,
    ValidationError,
)
from tests.server.helpers.scripted_links import ANSWER, CONTEXT, PROMPT, Site, ids_of, params_of

# ---- an engine dies -----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(0, 40, 3))
async def test_an_answer_goes_on_at_another_engine_after_any_token_with_the_same_text(
    site: Site, cut: int
) -> None:
    ids = ids_of(site)
    reader = site.read("r")
    await site.settle()
    dying, other = site.at("r")
    for token_id in ids[:cut]:
        dying.emit("r", token_id)
        await site.settle()
    assert ANSWER.startswith(reader.text.rstrip("\ufffd")) and "\ufffd" not in reader.text
    dying.die()
    await site.settle()
    (again,) = other.sent
    assert (again.prompt_token_ids, again.resume_token_ids) == (PROMPT, ids[:cut])
    assert (again.params, again.is_admitted) == (dying.sent[0].params, True)
    other.emit("r", *ids[cut:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.token_ids, reader.reason) == (ANSWER, ids, "length")
    assert reader.num_restarts == 1


async def test_what_is_read_without_a_callback_goes_on_as_well(site: Site) -> None:
    ids = ids_of(site)
    reader = site.read("r", on_delta=False)
    await site.settle()
    dying, other = site.at("r")
    dying.emit("r", *ids[:9])
    await site.settle()
    dying.die()
    await site.settle()
    other.emit("r", *ids[9:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.token_ids) == (ANSWER, ids)


async def test_half_a_stop_string_is_held_back_from_one_engine_to_the_next(site: Site) -> None:
    ids = ids_of(site, "so it ends never here")
    reader = site.read("r", params=params_of(stop=["ends here"]))
    await site.settle()
    dying, other = site.at("r")
    cut = next(n for n in range(len(ids)) if site.tokenizer.decode(ids[:n]).endswith("ends"))
    dying.emit("r", *ids[:cut])
    await site.settle()
    assert reader.text == "so it "
    dying.die()
    await site.settle()
    assert reader.text == "so it "
    rest = ids_of(site, " here")
    other.emit("r", *rest)
    await reader.task
    assert (reader.text, reader.reason) == ("so it ", "stop")


async def test_an_answer_that_another_worker_has_begun_goes_on_after_its_tokens(
    site: Site,
) -> None:
    ids = ids_of(site)
    reader = site.read("r", resume_token_ids=ids[:7])
    await site.settle()
    dying, other = site.at("r")
    dying.emit("r", *ids[7:12])
    await site.settle()
    dying.die()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:12]
    other.emit("r", *ids[12:], finish_reason="length")
    await reader.task
    shown = site.group.resumed_text(PROMPT, params_of(), ids[:7])
    assert shown + reader.text == ANSWER
    assert reader.token_ids == ids[7:]


async def test_answers_go_on_with_the_numbers_that_they_were_begun_with(site: Site) -> None:
    site.read("r")
    await site.settle()
    dying, other = site.at("r")
    dying.die()
    await site.settle()
    seeds = {sent.params.seed for sent in [*dying.sent, *other.sent]}
    assert len(seeds) == 1 and None not in seeds


async def test_all_answers_of_an_engine_that_dies_go_on_and_those_of_the_others_are_left_alone(
    site: Site,
) -> None:
    ids = ids_of(site)
    readers = {f"r{n}": site.read(f"r{n}", session_id=f"s{n}") for n in range(20)}
    await site.settle()
    dying, other = site.links["a"], site.links["b"]
    num_there, num_elsewhere = len(dying.sent), len(other.sent)
    assert min(num_there, num_elsewhere) > 5
    for name in readers:
        (dying if dying.ids(name) else other).emit(name, *ids[:5])
    await site.settle()
    dying.die()
    await site.settle()
    assert len(other.sent) == 20 and other.aborted == []
    for name in readers:
        other.emit(name, *ids[5:], finish_reason="length")
    await asyncio.gather(*(reader.task for reader in readers.values()))
    assert {reader.text for reader in readers.values()} == {ANSWER}
    restarts = [reader.num_restarts for reader in readers.values()]
    assert (restarts.count(1), restarts.count(0)) == (num_there, num_elsewhere)
    assert [member.num_moved for member in site.members] == [num_there, 0]


async def test_an_answer_stays_with_its_engine_while_there_is_no_other(site: Site) -> None:
    ids = ids_of(site)
    reader = site.read("r")
    await site.settle()
    dying, other = site.at("r")
    other.die()
    dying.emit("r", *ids[:4])
    await site.settle()
    dying.die()
    await site.settle()
    assert site.states == [CoreState.READY, CoreState.DEAD] and not site.group.is_ready
    dying.come()
    await site.settle()
    assert dying.sent[-1].resume_token_ids == ids[:4] and other.sent == []
    dying.emit("r", *ids[4:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.num_restarts) == (ANSWER, 1)
    assert site.states == [CoreState.READY, CoreState.DEAD, CoreState.READY]


async def test_an_answer_that_waits_goes_to_the_first_engine_that_comes(site: Site) -> None:
    ids = ids_of(site)
    reader = site.read("r")
    await site.settle()
    dying, other = site.at("r")
    other.die()
    dying.emit("r", *ids[:4])
    await site.settle()
    dying.die()
    await site.settle()
    other.come()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:4]
    dying.come()
    await site.settle()
    assert len(dying.sent) == 1
    other.emit("r", *ids[4:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


async def test_an_answer_that_kills_two_engines_kills_no_third() -> None:
    site = Site("abc")
    await site.settle()
    reader = site.read("deadly")
    await site.settle()
    first, _ = site.at("deadly")
    first.die()
    await site.settle()
    second, _ = site.at("deadly")
    second.die()
    await reader.task
    assert (reader.reason, reader.text) == ("error", "")
    assert reader.end is not None and reader.end.error is not None
    assert "2 engines died" in reader.end.error.message
    assert sum(len(link.sent) for link in site.links.values()) == 2
    site.close()


async def test_suspects_are_tried_one_by_one_after_all_that_are_harmless(site: Site) -> None:
    ids = ids_of(site)
    dying, other = site.links["a"], site.links["b"]
    other.die()
    readers = {name: site.read(name) for name in ("deadly", "poor", "fine")}
    await site.settle()
    dying.emit("fine", ids[0])
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    assert [sent.request_id.split("-")[0] for sent in other.sent] == ["fine"]
    other.emit("fine", ids[1])
    await site.settle()
    assert len(other.sent) == 2  # one suspect, alone
    suspect = other.sent[1].request_id.split("-")[0]
    other.emit(suspect, ids[0])
    await site.settle()
    assert {sent.request_id.split("-")[0] for sent in other.sent} == set(readers)


async def test_suspects_that_have_waited_for_an_engine_are_tried_one_by_one_too(
    site: Site,
) -> None:
    dying, other = site.links["a"], site.links["b"]
    other.die()
    for name in ("deadly", "poor"):
        site.read(name)
    await site.settle()
    other.come()
    dying.die()
    other.die()
    await site.settle()
    assert other.sent == []
    other.come()
    await site.settle()
    (tried,) = other.sent
    other.emit(tried.request_id.split("-")[0], ids_of(site)[0])
    await site.settle()
    assert len(other.sent) == 2


async def test_one_that_only_waited_its_turn_is_no_suspect(site: Site) -> None:
    site.links["b"].die()
    site.read("waiting")
    site.read("suspect")
    await site.settle()
    dying, other = site.links["a"], site.links["b"]
    dying.emit("waiting", queue_position=1)
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    assert [sent.request_id.split("-")[0] for sent in other.sent] == ["waiting"]


async def test_what_cannot_be_joined_stays_with_its_engine(site: Site) -> None:
    cases: dict[str, dict[str, Any]] = {
        "n": {"n": 2},
        "whole": {"output_kind": RequestOutputKind.FINAL_ONLY},
        "scored": {"prompt_logprobs": 1},
    }
    for name, fields in cases.items():
        site.read(name, on_delta=False, params=params_of(**fields))
    await site.settle()
    for name in cases:
        assert not site.at(name)[1].ids(name)
    for link in site.links.values():
        link.die()
        link.come()
    await site.settle()
    for name in cases:
        assert not site.at(name)[1].ids(name)


async def test_what_stays_with_its_engine_goes_on_there_after_each_death_that_followed_a_token(
    site: Site,
) -> None:
    reader = site.read("r", on_delta=False, params=params_of(n=2))
    await site.settle()
    mine, _ = site.at("r")
    for token_id in ids_of(site)[:3]:
        for child in ("0_r", "1_r"):
            mine.emit(child, token_id)
        await site.settle()
        mine.die()
        mine.come()
        await site.settle()
    for child in ("0_r", "1_r"):
        mine.emit(child, finish_reason="length")
    await reader.task
    assert reader.end is not None and reader.end.error is None
    assert {each.finish_reason for each in reader.end.outputs} == {"length"}


# ---- an engine fails ----------------------------------------------------------------------------


async def test_an_answer_that_an_engine_cannot_continue_goes_to_the_next_one() -> None:
    site = Site("abc")
    await site.settle()
    ids = ids_of(site)
    reader = site.read("r")
    await site.settle()
    dying, _ = site.at("r")
    dying.emit("r", *ids[:3])
    await site.settle()
    dying.die()
    await site.settle()
    unable, _ = site.at("r")
    unable.emit("r", finish_reason="error", error=(CANNOT_CONTINUE, "it would begin anew"))
    await site.settle()
    able, _ = site.at("r")
    assert able not in (dying, unable)
    able.emit("r", *ids[3:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.reason) == (ANSWER, "length")
    site.close()


async def test_where_no_engine_can_continue_an_answer_it_ends_with_what_it_has(
    site: Site,
) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    site.change("b" if mine is site.links["a"] else "a", is_draining=True)
    mine.emit("r", *ids_of(site)[:3])
    mine.emit("r", finish_reason="error", error=(CANNOT_CONTINUE, "it would begin anew"))
    await reader.task
    assert reader.reason == "error" and other.sent == []
    assert reader.end is not None and reader.end.error is not None
    assert reader.end.error.code == CANNOT_CONTINUE


async def test_an_engine_that_cannot_be_reached_is_passed_over(site: Site) -> None:
    site.links["a"].can_send = False
    readers = [site.read(f"r{n}", session_id=f"s{n}") for n in range(10)]
    await site.settle()
    assert len(site.links["b"].sent) == 10
    assert all(reader.error is None for reader in readers)


async def test_an_engine_that_fails_again_and_again_is_asked_nothing_for_a_while(
    site: Site,
) -> None:
    failing, other = site.links["a"], site.links["b"]
    for number in range(20):
        site.read(f"r{number}", session_id=f"s{number}")
        await site.settle()
        if failing.ids(f"r{number}"):
            failing.emit(f"r{number}", finish_reason="error", error=("engine_error", "500"))
            await site.settle()
    assert len(failing.sent) == 3
    assert len(other.sent) == 20


async def test_an_error_of_the_answer_itself_is_its_end(site: Site) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    mine.emit("r", finish_reason="error", error=("grammar_refused", "no such form"))
    await reader.task
    assert reader.reason == "error" and other.sent == []


async def test_an_error_that_every_engine_has_with_it_is_told_after_the_second(
    site: Site,
) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    for link in (mine, other):
        link.emit("r", finish_reason="error", error=("engine_error", "not finite"))
        await site.settle()
    assert reader.reason == "error"
    assert len(mine.sent) == len(other.sent) == 1


async def test_arguments_that_are_wrong_are_refused_by_name(site: Site) -> None:
    reader = site.read("r", prompt=[5] * (CONTEXT + 1))
    await reader.task
    assert isinstance(reader.error, ValidationError)
    site.read("twice")
    await site.settle()
    again = site.read("twice")
    await again.task
    assert isinstance(again.error, ValidationError) and again.error.parameter == "request_id"


# ---- stopping -----------------------------------------------------------------------------------


async def test_a_stop_ends_an_answer_at_the_engine_that_writes_it(site: Site) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    mine.emit("r", *ids_of(site, "Once upon"))
    await site.settle()
    await site.group.abort("r")
    await reader.task
    assert (reader.text, reader.reason) == ("Once upon", "abort")
    assert len(mine.aborted) == 1 and not (other.aborted or other.sent)


async def test_a_stop_while_an_answer_moves_ends_it(site: Site) -> None:
    reader = site.read("r")
    await site.settle()
    dying, other = site.at("r")
    dying.emit("r", *ids_of(site, "Once upon"))
    await site.settle()
    dying.die()
    await site.group.abort("r")
    await reader.task
    await site.settle()
    assert (reader.text, reader.reason) == ("Once upon", "abort")
    assert other.sent == []


@pytest.mark.parametrize("is_dead", [True, False])
async def test_an_answer_that_is_stopped_between_two_engines_is_free_if_the_first_has_said_so(
    site: Site, is_dead: bool
) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    mine.emit("r", *ids_of(site, "Once upon"))
    await site.settle()
    if is_dead:
        mine.die()
    else:
        site.change(site.place_of("r"), is_draining=True, must_move=True)
    other.stall()
    await site.settle()
    await site.group.abort("r")
    await reader.task
    assert (reader.text, reader.reason, other.sent) == ("Once upon", "abort", [])
    assert reader.end is not None and reader.end.metrics is not None
    assert reader.end.metrics.core_confirmed is not is_dead


async def test_a_stop_ends_an_answer_that_waits_for_its_trial(site: Site) -> None:
    dying, other = site.links["a"], site.links["b"]
    other.die()
    readers = [site.read(name) for name in ("r1", "r2")]
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    waiting = "r2" if other.ids("r1") else "r1"
    await site.group.abort(waiting)
    reader = readers[int(waiting[1]) - 1]
    await reader.task
    assert (reader.reason, other.ids(waiting)) == ("abort", [])


async def test_a_reader_that_leaves_ends_its_answer(site: Site) -> None:
    reader = site.read("r")
    await site.settle()
    mine, _ = site.at("r")
    reader.task.cancel()
    await site.settle()
    assert len(mine.aborted) == 1
    assert not any(member.num_answers for member in site.members)


async def test_when_a_reader_has_closed_its_answer_no_engine_writes_it_any_more(
    site: Site,
) -> None:
    outputs = site.group.generate({"prompt_token_ids": PROMPT}, params_of(), "r")
    reading = asyncio.ensure_future(anext(outputs))
    await site.settle()
    mine, _ = site.at("r")
    mine.emit("r", ids_of(site, "Once")[0])
    await reading
    await outputs.aclose()
    assert [member.num_answers for member in site.members] == [0, 0]


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


# ---- as one engine ------------------------------------------------------------------------------


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
