"""What an engine at an address may do to an answer: nothing that was shown ever changes."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from engine import CoreState, EngineDeadError, EngineGenerateError, Exactness
from engine.errors import QueueOverflowError, RetryableRequestError, ValidationError
from server.engines.client import CANNOT_CONTINUE, StructuredOutputsParams
from server.engines.remote import answers as answers_module
from server.engines.remote.answer import MAX_TRIES_IN_VAIN, OpenAnswer
from server.engines.remote.dialects.dialect import Ask, RemoteLoad
from server.engines.remote.patience import MAX_FAILURES, Patience
from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.exchange import Exchange
from tests.helpers.patience import PATIENCE
from tests.server.engines.remote.conftest import PROMPT, QUICK, Join, Joined, asked, read
from tests.server.engines.remote.stand_in import (
    END_ID,
    LlamaCppStandIn,
    SGLangStandIn,
    StandIn,
    answer_ids,
)

WHOLE = answer_ids(PROMPT, 12)
# After each of these an answer goes on from the next token, as if nothing had been.
PASSING = [
    "cut",
    "half a frame",
    "a clean end",
    "no JSON",
    "an error in the stream",
    "endless event",
    "text/html",
    "redirect",
    "500",
    "502",
    "429",
    "503",
]


async def settle(condition: Any) -> None:
    """Give the event loop turns until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (conditions of plain objects)
            await asyncio.sleep(0.001)


async def test_an_answer_has_the_tokens_that_the_engine_says(remote: Joined) -> None:
    answer = await remote.ask()
    assert (answer.token_ids, answer.reason) == (WHOLE, "length")
    assert answer.text == remote.engine.tokenizer.decode(WHOLE)
    assert remote.engine.exactness is Exactness.TOKENS


async def test_an_answer_ends_with_the_token_that_ends_answers(remote: Joined) -> None:
    remote.stand_in.script = [*WHOLE[:3], END_ID, *WHOLE[:3]]
    answer = await remote.ask()
    assert (answer.token_ids, answer.reason) == ([*WHOLE[:3], END_ID], "stop")
    assert answer.text == remote.engine.tokenizer.decode(WHOLE[:3])


async def test_an_answer_ends_with_a_token_of_its_own_choice(remote: Joined) -> None:
    answer = await remote.ask(params=asked(stop_token_ids=[WHOLE[4]]))
    first = WHOLE.index(WHOLE[4])
    assert (answer.token_ids, answer.reason) == (WHOLE[: first + 1], "stop")
    assert answer.last.outputs[0].stop_reason == WHOLE[4]


async def test_an_answer_ends_before_a_stop_string(remote: Joined) -> None:
    text = remote.engine.tokenizer.decode(WHOLE)
    answer = await remote.ask(params=asked(stop=[text[3:5]]))
    assert (answer.text, answer.reason) == (text[: text.index(text[3:5])], "stop")
    await settle(lambda: remote.stand_in.num_open == 0)


async def test_an_answer_goes_on_after_tokens_that_were_shown_elsewhere(remote: Joined) -> None:
    answer = await remote.ask(resume_token_ids=WHOLE[:5])
    assert answer.token_ids == WHOLE[5:]


@pytest.mark.parametrize("number", [12, 3])
async def test_nothing_is_asked_for_after_the_last_token(remote: Joined, number: int) -> None:
    resumed = WHOLE if number == 12 else [*WHOLE[:3], END_ID]
    answer = await remote.ask(resume_token_ids=resumed)
    assert (answer.token_ids, answer.reason) == ([], "length" if number == 12 else "stop")
    assert remote.stand_in.asked == []


@pytest.mark.parametrize("fault", PASSING)
async def test_a_reply_that_fails_is_asked_for_again_from_the_next_token(
    remote: Joined, fault: str
) -> None:
    remote.stand_in.faults.append(fault)
    answer = await remote.ask()
    assert (answer.token_ids, answer.reason, len(remote.stand_in.asked)) == (WHOLE, "length", 2)
    first, second = map(remote.stand_in.prompt, remote.stand_in.asked)
    assert second == [*PROMPT, *WHOLE[: len(second) - len(first)]]
    assert remote.engine.is_ready


async def test_an_answer_that_gets_no_further_ends_after_a_few_tries(remote: Joined) -> None:
    remote.stand_in.faults.extend(["cut"] + ["500"] * MAX_TRIES_IN_VAIN)
    answer = await remote.ask()
    assert (answer.token_ids, answer.reason) == (WHOLE[: len(answer.token_ids)], "error")
    assert len(remote.stand_in.asked) == 1 + MAX_TRIES_IN_VAIN
    assert "tries without another token" in answer.problem and "planted" in answer.problem


@pytest.mark.parametrize("fault", ["wrong ids", "lies about the prompt", "lies about its tokens"])
async def test_nothing_of_a_lie_is_shown(remote: Joined, fault: str) -> None:
    remote.stand_in.faults.extend([fault] * MAX_TRIES_IN_VAIN)
    answer = await remote.ask()
    assert answer.token_ids == WHOLE[: len(answer.token_ids)]
    assert answer.reason == "error" and answer.problem


async def test_no_more_is_shown_than_was_asked_for(remote: Joined) -> None:
    remote.stand_in.faults.append("more than was asked for")
    answer = await remote.ask()
    assert (answer.token_ids, answer.reason) == (WHOLE, "length")
    await settle(lambda: remote.stand_in.num_open == 0)


async def test_what_the_engine_refuses_is_not_asked_again(remote: Joined) -> None:
    remote.stand_in.faults.append("400")
    answer = await remote.ask()
    assert answer.last.error is not None
    assert (answer.last.error.code, answer.problem) == (
        "invalid_request",
        "the engine refuses: planted",
    )
    assert len(remote.stand_in.asked) == 1


async def test_an_engine_with_too_much_to_do_is_a_full_queue(stand_in: StandIn, join: Join) -> None:
    await stand_in.start()
    joined = await join(stand_in, patience=Patience(busy=0.0, look=0.01))
    stand_in.faults.extend(["429"] * 100)
    with pytest.raises(QueueOverflowError, match="too much to do"):
        await joined.ask()


async def test_an_answer_that_goes_on_may_meet_a_busy_engine_again_and_again(
    stand_in: StandIn, join: Join
) -> None:
    await stand_in.start()
    joined = await join(stand_in, patience=Patience(busy=0.0, look=0.01))
    stand_in.faults.extend(["cut", *["503"] * 5, "cut", *["503"] * 5])
    answer = await joined.ask()
    assert (answer.token_ids, answer.reason) == (WHOLE, "length")


async def test_what_a_kind_cannot_do_is_refused_by_name_before_anything_is_sent(
    remote: Joined,
) -> None:
    with pytest.raises(ValidationError) as refused:
        await remote.ask(params=asked(prompt_logprobs=1))
    assert refused.value.parameter == "prompt_logprobs"
    assert str(refused.value).endswith(f"engines of the kind {remote.link._dialect.name}")
    assert remote.stand_in.asked == []


async def test_answers_go_on_where_they_were_when_the_engine_is_back(remote: Joined) -> None:
    stand_in = remote.stand_in
    stand_in.pace = asyncio.Semaphore(40)
    streams = [await remote.add(f"r{n}") for n in range(10)]
    states = remote.engine.output_processor.request_states
    await settle(lambda: sum(len(state.token_ids) for state in states.values()) == 40)
    await stand_in.die()
    await settle(lambda: remote.engine.core_state is CoreState.DEAD)
    with pytest.raises(RetryableRequestError):
        await remote.add("refused")
    stand_in.pace = None
    await stand_in.start()
    answers = await asyncio.gather(*map(read, streams))
    assert [answer.token_ids for answer in answers] == [WHOLE] * 10
    assert [state for state, _ in remote.states] == [
        CoreState.READY,
        CoreState.DEAD,
        CoreState.READY,
    ]


async def test_an_engine_is_joined_as_soon_as_it_is_there(stand_in: StandIn, join: Join) -> None:
    await stand_in.start()
    await stand_in.die()
    joined = await join(stand_in, is_there=False)
    assert joined.engine.core_state is CoreState.CONNECTING
    await settle(lambda: joined.link.problem is not None)
    with pytest.raises(RetryableRequestError):
        await joined.add()
    await stand_in.start()
    await joined.engine.wait_ready(PATIENCE)
    assert (await joined.ask()).token_ids == WHOLE


async def test_an_engine_that_says_nothing_stalls_and_then_counts_as_dead(
    join: Join,
) -> None:
    stand_in = LlamaCppStandIn()
    await stand_in.start()
    quick = Patience(look=0.01, reply=0.2, stalled=0.3, dead=0.8, again=(0.01, 0.02))
    joined = await join(stand_in, patience=quick)
    stand_in.is_mute = True
    await settle(lambda: joined.engine.core_state is CoreState.DEAD)
    assert [state for state, _ in joined.states[-2:]] == [CoreState.STALLED, CoreState.DEAD]
    stand_in.is_mute = False
    await joined.engine.wait_ready(PATIENCE)


async def test_an_answer_of_which_nothing_comes_is_asked_for_again(
    stand_in: StandIn, join: Join
) -> None:
    await stand_in.start()
    joined = await join(stand_in, patience=Patience(look=0.01, first_byte=1.0))
    stand_in.faults.append("silent")
    assert (await joined.ask()).token_ids == WHOLE


async def test_an_answer_that_stands_still_is_asked_for_again_from_there(
    stand_in: StandIn, join: Join
) -> None:
    stand_in.pace = asyncio.Semaphore(3)
    await stand_in.start()
    joined = await join(stand_in, patience=Patience(look=0.01, first_byte=PATIENCE, next_byte=1.0))
    stream = await joined.add()
    await settle(lambda: stand_in.num_open == 1 and stand_in.pace.locked())
    await settle(lambda: len(stand_in.asked) == 2)
    stand_in.let(100)
    assert (await read(stream)).token_ids == WHOLE


@pytest.mark.parametrize("fault", ["comments alone", "comments in the middle"])
async def test_comments_are_no_life_of_an_answer_that_stands_still(
    stand_in: StandIn, join: Join, fault: str
) -> None:
    await stand_in.start()
    patience = replace(QUICK, first_byte=0.5, next_byte=0.5)
    joined = await join(stand_in, patience=patience)
    stand_in.faults.append(fault)
    assert (await joined.ask()).token_ids == WHOLE
    assert len(stand_in.asked) == 2


async def test_an_engine_that_lives_and_answers_nothing_is_left_alone_for_a_while(
    stand_in: StandIn, join: Join
) -> None:
    await stand_in.start()
    remote = await join(stand_in, patience=replace(QUICK, breaker=0.3))
    remote.stand_in.faults.extend(["500"] * MAX_FAILURES)
    for number in range(MAX_FAILURES):
        if remote.engine.core_state is CoreState.DEAD:
            break
        await remote.ask(f"r{number}")
    await settle(lambda: CoreState.DEAD in [state for state, _ in remote.states])
    assert "tries in a row have failed" in remote.states[1][1]
    await remote.engine.wait_ready(PATIENCE)
    assert remote.moments[2] - remote.moments[1] > 0.2
    assert (await remote.ask("after")).token_ids == WHOLE


async def test_what_breaks_at_the_same_time_has_failed_once(remote: Joined) -> None:
    stand_in = remote.stand_in
    stand_in.pace = asyncio.Semaphore(0)
    streams = [await remote.add(f"r{n}") for n in range(2 * MAX_FAILURES)]
    await settle(lambda: stand_in.num_open == len(streams))
    stand_in.cut_answers()
    stand_in.let(10_000)
    answers = await asyncio.gather(*map(read, streams))
    assert [answer.token_ids for answer in answers] == [WHOLE] * len(streams)
    assert [state for state, _ in remote.states] == [CoreState.READY]


async def test_an_answer_that_is_held_to_a_form_is_not_begun_anew(join: Join) -> None:
    stand_in = SGLangStandIn()
    await stand_in.start()
    joined = await join(stand_in)
    stand_in.faults.append("cut")
    form = StructuredOutputsParams(json={"type": "object"})
    answer = await joined.ask(params=asked(structured_outputs=form))
    assert (answer.token_ids, answer.reason) == (WHOLE[:2], "error")
    assert answer.last.error is not None and answer.last.error.code == CANNOT_CONTINUE
    again = await joined.ask(params=asked(structured_outputs=form), resume_token_ids=WHOLE[:2])
    assert again.last.error is not None and again.last.error.code == CANNOT_CONTINUE
    assert len(stand_in.asked) == 1


async def test_a_stop_is_confirmed_when_the_engine_has_ended_the_answer(join: Join) -> None:
    stand_in = SGLangStandIn()
    stand_in.pace = asyncio.Semaphore(3)
    await stand_in.start()
    joined = await join(stand_in)
    stream = await joined.add()
    await settle(lambda: stand_in.num_open == 1 and stand_in.pace.locked())
    await joined.engine.abort("r")
    answer = await read(stream)
    assert (answer.reason, answer.is_confirmed) == ("abort", True)
    assert stand_in.aborted == {stand_in.asked[0]["rid"]}


async def test_a_stop_that_the_engine_refuses_ends_the_answer_here_unconfirmed(join: Join) -> None:
    stand_in = SGLangStandIn()
    stand_in.refuses_aborts = True
    stand_in.pace = asyncio.Semaphore(3)
    await stand_in.start()
    joined = await join(stand_in)
    stream = await joined.add()
    await settle(lambda: stand_in.num_open == 1 and stand_in.pace.locked())
    await joined.engine.abort("r")
    answer = await read(stream)
    assert (answer.reason, answer.is_confirmed) == ("abort", False)
    stand_in.let(100)
    await settle(lambda: stand_in.num_open == 0)  # by a connection that was closed


async def test_a_stop_that_the_engine_does_not_carry_out_is_not_confirmed(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "ABORT_CONFIRM_SECONDS", 0.05)
    stand_in = SGLangStandIn()
    stand_in.ignores_aborts = True
    stand_in.pace = asyncio.Semaphore(3)
    await stand_in.start()
    joined = await join(stand_in)
    stream = await joined.add()
    await settle(lambda: stand_in.num_open == 1 and stand_in.pace.locked())
    await joined.engine.abort("r")
    answer = await read(stream)
    assert (answer.reason, answer.is_confirmed) == ("abort", False)


async def test_an_engine_that_would_go_on_after_the_end_is_told(join: Join) -> None:
    stand_in = SGLangStandIn()
    stand_in.script = [*WHOLE[:3], END_ID, *WHOLE]
    await stand_in.start()
    await (await join(stand_in)).ask()
    await settle(lambda: stand_in.aborted == {stand_in.asked[0]["rid"]})


async def test_a_stop_before_the_engine_was_asked_is_confirmed_at_once(join: Join) -> None:
    stand_in = LlamaCppStandIn()
    await stand_in.start()
    joined = await join(stand_in)
    stream = await joined.add()
    await joined.engine.abort("r")
    answer = await read(stream)
    assert (answer.reason, answer.is_confirmed, answer.token_ids) == ("abort", True, [])


async def test_a_stop_in_the_turn_in_which_the_engine_is_asked_is_not_confirmed_by_nobody(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = LlamaCppStandIn()
    await stand_in.start()
    joined = await join(stand_in, patience=replace(QUICK, look=PATIENCE))
    made = Exchange.connection_made

    def connection_made(exchange: Exchange, transport: asyncio.BaseTransport) -> None:
        made(exchange, transport)
        joined.engine._client.abort("r")  # as `abort` does before it first yields

    monkeypatch.setattr(Exchange, "connection_made", connection_made)
    answer = await read(await joined.add())
    assert (answer.reason, answer.is_confirmed) == ("abort", False)


async def test_a_stop_between_two_tries_is_not_confirmed_by_nobody(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = LlamaCppStandIn()  # which may compute for a second what nobody reads
    await stand_in.start()
    stand_in.faults.append("cut")
    joined = await join(stand_in)
    ended = OpenAnswer.end_try

    def end_try(answer: OpenAnswer) -> None:
        ended(answer)
        joined.engine._client.abort("r")

    monkeypatch.setattr(OpenAnswer, "end_try", end_try)
    answer = await read(await joined.add())
    assert (answer.reason, answer.is_confirmed) == ("abort", False)
    assert len(stand_in.asked) == 1


async def test_no_try_has_a_name_that_another_begins_with(join: Join) -> None:
    stand_in = SGLangStandIn()
    await stand_in.start()
    stand_in.faults.append("cut")
    await (await join(stand_in)).ask()
    names = {body["rid"] for body in stand_in.asked}
    assert len(names) == 2 and len({len(name) for name in names}) == 1


async def test_the_engine_is_shown_the_key_of_a_file(
    stand_in: StandIn, join: Join, tmp_path: Path
) -> None:
    await stand_in.start()
    key = tmp_path / "key"
    key.write_text("secret-1\n")
    joined = await join(stand_in, address=RemoteAddress(stand_in.url, key_file=key))
    await joined.ask()
    assert stand_in.keys == {"Bearer secret-1"}


async def test_the_load_is_that_which_the_engine_tells(remote: Joined) -> None:
    stand_in = remote.stand_in
    stand_in.pace = asyncio.Semaphore(0)
    streams = [await remote.add(f"r{n}") for n in range(3)]
    await settle(lambda: remote.engine.stats and remote.engine.stats.num_running == 3)
    stand_in.let(1000)
    await asyncio.gather(*map(read, streams))
    await settle(lambda: remote.engine.stats and remote.engine.stats.num_running == 0)
    metrics = await remote.engine.metrics()
    assert (metrics["requests_total"], metrics["generation_tokens_total"]) == (3, 36)


async def test_figures_that_no_engine_has_can_be_told_all_the_same(join: Join) -> None:
    class Boasting(LlamaCppStandIn):
        def routes(self) -> dict[str, Any]:
            props = {"default_generation_settings": {"n_ctx": 1 << 50}, "total_slots": 1 << 50}
            return {**super().routes(), "/props": lambda _: props}

    stand_in = Boasting()
    await stand_in.start()
    joined = await join(stand_in)
    orjson.dumps(await joined.engine.metrics())
    loads = [RemoteLoad(1 << 70, 1 << 70, 2.0), RemoteLoad(None, None, -1.0), RemoteLoad(0, 0, 0.5)]
    for load in loads:
        orjson.dumps(msgspec.structs.asdict(joined.link._stats_of(load)))


async def test_what_only_a_core_of_ours_can_do_is_an_error_of_the_call(remote: Joined) -> None:
    with pytest.raises(EngineGenerateError, match="have no pause"):
        await remote.engine.pause_generation()
    await remote.engine.check_health()
    assert not await remote.engine.is_sleeping()


async def test_who_operates_it_hears_why_it_is_not_joined_once(
    stand_in: StandIn, join: Join
) -> None:
    await stand_in.start()
    await stand_in.die()
    joined = await join(stand_in, is_there=False)
    await settle(lambda: len(joined.states) == 1)
    ((state, reason),) = joined.states
    assert state is CoreState.CONNECTING and stand_in.url in reason


async def test_watching_outlives_what_nobody_has_thought_of(
    remote: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = remote.link._dialect
    look, faults, listeners = dialect.look, [KeyError("x"), None, KeyError("y")], [1]

    async def looked(ask: Ask) -> RemoteLoad:
        if faults and (fault := faults.pop(0)) is not None:
            raise fault
        return await look(ask)

    take_state = remote.take_state

    def take(state: CoreState, reason: str) -> None:
        take_state(state, reason)
        if state is CoreState.READY and listeners:
            raise ValueError(f"listener {listeners.pop()} fails, too")

    monkeypatch.setattr(remote, "take_state", take)
    monkeypatch.setattr(dialect, "look", looked)
    await settle(lambda: not faults and not listeners)
    await remote.engine.wait_ready(PATIENCE)
    assert (await remote.ask()).token_ids == WHOLE
    assert "KeyError" in remote.states[1][1]


async def test_an_answer_that_cannot_be_asked_for_ends(
    remote: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader(request: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(remote.link._dialect, "reader", reader)
    answer = await remote.ask()
    assert (answer.reason, answer.problem) == ("error", "it cannot be asked for: KeyError")


async def test_nothing_is_left_of_a_link_that_is_closed(stand_in: StandIn, join: Join) -> None:
    await stand_in.start()
    before = asyncio.all_tasks()
    remote = await join(stand_in)
    remote.stand_in.pace = asyncio.Semaphore(2)
    stream = await remote.add()
    await settle(lambda: remote.stand_in.num_open == 1)
    remote.engine.shutdown()
    with pytest.raises(EngineDeadError):
        await read(stream)
    remote.stand_in.let(100)
    await settle(lambda: remote.stand_in.num_open == 0)
    await settle(lambda: asyncio.all_tasks() <= before)
