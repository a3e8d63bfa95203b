"""`TextEngine`: it is asked, watched and left, as the server's own engine is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from server.engines.client import (
    CoreState,
    RetryableRequestError,
    TokenCounts,
    ValidationError,
)
from server.engines.textual.engine import LAST_RETRY_SECONDS, retry_seconds
from server.engines.textual.facts import read_facts
from server.engines.textual.ids import encode_answer
from tests.helpers.patience import PATIENCE
from tests.server.engines.textual.asking import HELLO, Open
from tests.server.engines.textual.stand_in import (
    DONE,
    Reply,
    StandIn,
    chunk,
    refused,
    said,
    usage,
)


async def test_an_answer_is_shown_as_it_comes_and_counted_by_the_engine(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(
        Reply([chunk("Good "), chunk("eve"), chunk(reason="stop"), usage(21, 2, 16), DONE])
    )
    last = await asker.ask()
    assert asker.text == "Good eve"
    assert asker.token_ids == [*encode_answer("Good "), *encode_answer("eve")]
    assert (last.outputs[0].finish_reason, last.error) == ("stop", None)
    assert last.counts == TokenCounts(num_prompt=21, num_cached=16, num_output=2)
    (asked,) = stand_in.asked
    assert (asked["model"], asked["messages"]) == ("m", HELLO)
    assert (asked["max_tokens"], asked["temperature"], asked["seed"]) == (100, 0.5, 3)
    assert asked["stream"] is True and "continue_final_message" not in asked


async def test_text_in_parts_is_text_and_what_is_none_is_left_out(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    given: Any = [{"type": "text", "text": "One, "}, {"type": "image"}, {"text": "two."}]
    stand_in.replies.append(Reply([chunk(given), chunk(reason="stop"), DONE]))
    await asker.ask()
    assert asker.text == "One, two."


@pytest.mark.parametrize("number", [-1, 10**18])
async def test_figures_that_cannot_be_are_not_believed(open_engine: Open, number: int) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(
        Reply([chunk("Good "), chunk("eve"), chunk(reason="stop"), usage(number, number), DONE])
    )
    last = await asker.ask()
    assert last.counts is not None and last.counts.num_output == 2
    assert last.counts.num_prompt > 0


async def test_watching_outlives_what_nobody_has_thought_of(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn()
    states: list[CoreState] = []
    faults = [KeyError("x"), None]

    def read(*args: Any) -> Any:
        if faults and (fault := faults.pop(0)) is not None:
            raise fault
        return read_facts(*args)

    def take(state: CoreState, reason: str) -> None:
        states.append(state)
        if len(states) == 1:
            raise ValueError("a listener fails, too")

    monkeypatch.setattr("server.engines.textual.engine.read_facts", read)
    asker = await open_engine(stand_in, on_core_state=take, look_seconds=0.01)
    assert not faults
    await stand_in.die()
    async with asyncio.timeout(PATIENCE):
        while asker.engine.core_state is not CoreState.DEAD:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await stand_in.listen()
    await asker.engine.wait_ready(PATIENCE)


def test_an_engine_is_looked_for_however_long_it_is_away() -> None:
    assert [retry_seconds(number) for number in (1, 2, 3)] == [0.2, 0.4, 0.8]
    assert retry_seconds(100_000) == LAST_RETRY_SECONDS


async def test_an_engine_that_dies_and_comes_back_goes_on(open_engine: Open) -> None:
    stand_in = StandIn()
    states: list[CoreState] = []
    died = asyncio.Event()

    def take(state: CoreState, reason: str) -> None:
        states.append(state)
        if state is CoreState.DEAD:
            died.set()

    asker = await open_engine(stand_in, on_core_state=take)
    stand_in.replies.append(Reply([chunk("One, "), asyncio.Event()]))
    asking = asyncio.create_task(asker.ask())
    await asyncio.wait_for(asker.heard.wait(), PATIENCE)
    await stand_in.die()
    await asyncio.wait_for(died.wait(), PATIENCE)
    with pytest.raises(RetryableRequestError):
        asker.engine.check_admission()
    stand_in.replies.append(said("two."))
    await stand_in.listen()
    last = await asking
    assert (asker.text, last.outputs[0].finish_reason) == ("One, two.", "stop")
    assert states == [CoreState.READY, CoreState.DEAD, CoreState.READY]


async def test_a_stop_closes_the_stream_and_claims_no_confirmation(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(Reply([chunk("One"), asyncio.Event()]))
    asking = asyncio.create_task(asker.ask())
    await asyncio.wait_for(asker.heard.wait(), PATIENCE)
    await asker.engine.abort("resp_1")
    last = await asking
    assert last.outputs[0].finish_reason == "abort"
    assert last.metrics is not None and not last.metrics.core_confirmed
    await asyncio.wait_for(stand_in.was_left.wait(), PATIENCE)


async def test_a_reader_that_leaves_closes_the_stream(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(Reply([chunk("One"), asyncio.Event()]))
    asking = asyncio.create_task(asker.ask())
    await asyncio.wait_for(asker.heard.wait(), PATIENCE)
    asking.cancel()
    await asyncio.wait_for(stand_in.was_left.wait(), PATIENCE)
    await asyncio.wait([asking])
    assert asker.engine.stats is not None and asker.engine.stats.num_running == 0


async def test_an_engine_that_repeats_our_key_tells_it_to_nobody(
    open_engine: Open, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sk-secret")
    stand_in = StandIn()
    asker = await open_engine(stand_in, key_file=key_file)
    message = "no such header: Bearer sk-secret"
    stand_in.replies += [refused(401, message), refused(400, message)]
    last = await asker.ask()
    assert last.error is not None and last.error.message == "no such header: Bearer ***"
    assert "sk-secret" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("params", "parameter"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"logit_bias": {3: 1.0}}, "logit_bias"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"top_k": 3}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"stop": list("abcde")}, "stop"),
    ],
)
async def test_what_it_cannot_be_asked_for_is_refused_by_name(
    open_engine: Open, params: dict[str, Any], parameter: str
) -> None:
    stand_in = StandIn(server="")
    asker = await open_engine(stand_in)
    with pytest.raises(ValidationError) as refusal:
        await asker.ask(params=params)
    assert refusal.value.parameter == parameter
    assert stand_in.asked == []


async def test_the_context_is_what_the_engine_says_or_less(open_engine: Open) -> None:
    as_said = await open_engine(StandIn(context=1000))
    assert as_said.engine.model_config.max_model_len == 1000
    less = await open_engine(StandIn(context=1000), context=500)
    assert less.engine.model_config.max_model_len == 500
    unknown = await open_engine(StandIn(context=None))
    assert unknown.engine.model_config.max_model_len == 8192


async def test_the_key_is_sent_and_read_anew_when_it_is_refused(
    open_engine: Open, tmp_path: Path
) -> None:
    stand_in = StandIn()
    key_file = tmp_path / "key"
    key_file.write_text("first\n")
    asker = await open_engine(stand_in, key_file=key_file)
    assert b"Bearer first" in stand_in.heads[-1]
    key_file.write_text("second\n")
    stand_in.replies += [refused(401), said("Yes")]
    await asker.ask()
    assert (asker.text, b"Bearer second" in stand_in.heads[-1]) == ("Yes", True)
