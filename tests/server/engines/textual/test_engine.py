"""`TextEngine` before an engine that does as it should, and before others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from server.engines.client import (
    CANNOT_CONTINUE,
    AnswerParser,
    CoreState,
    Exactness,
    ParsedArguments,
    ParsedBegin,
    ParsedReasoning,
    ParsedText,
    RetryableRequestError,
    SamplingParams,
    TokenCounts,
    ValidationError,
)
from server.engines.textual.answers import GRAMMAR
from server.engines.textual.asking import MAX_TOKEN_LENGTH
from server.engines.textual.engine import LAST_RETRY_SECONDS, retry_seconds
from server.engines.textual.facts import read_facts
from server.engines.textual.ids import encode_answer
from server.engines.textual.line import Patience
from tests.helpers.patience import PATIENCE
from tests.server.engines.textual.asking import HELLO, Open
from tests.server.engines.textual.stand_in import (
    DONE,
    JSON,
    STREAM,
    Reply,
    StandIn,
    broken,
    call_chunk,
    chunk,
    refused,
    said,
    usage,
)

HASTY = Patience(first=1.0, next=1.0, last=0.2)


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


# ---- what breaks off ----------------------------------------------------------------------------


async def test_an_answer_that_breaks_off_goes_on_after_its_text(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    assert asker.engine.exactness is Exactness.TEXT
    stand_in.replies += [broken("One, ", "two"), broken(", three"), said(", four.")]
    last = await asker.ask()
    assert asker.text == "One, two, three, four."
    assert last.outputs[0].finish_reason == "stop"
    assert last.metrics is not None and last.metrics.num_resubmits == 2
    second, third = stand_in.asked[1:]
    assert second["messages"] == [*HELLO, {"role": "assistant", "content": "One, two"}]
    assert third["messages"][-1]["content"] == "One, two, three"
    assert second["continue_final_message"] is True
    assert second["add_generation_prompt"] is False
    assert second["max_tokens"] < 100


async def test_white_space_at_the_seam_is_neither_lost_nor_said_twice(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [broken("One.\n"), broken("\n", "\n"), said("\n", "\n", "Two")]
    await asker.ask()
    assert asker.text == "One.\n\nTwo"
    assert [asked["messages"][-1]["content"] for asked in stand_in.asked[1:]] == ["One.", "One."]


@pytest.mark.parametrize("server", ["vllm", "system"])
@pytest.mark.parametrize("fault", ["cut", "silent", "broken"])
async def test_an_answer_that_the_engine_has_ended_has_ended_whatever_follows(
    open_engine: Open, server: str, fault: str
) -> None:
    stand_in = StandIn(server=server)
    asker = await open_engine(stand_in, patience=HASTY)
    rests: dict[str, list[bytes | asyncio.Event]] = {
        "cut": [],
        "silent": [asyncio.Event()],
        "broken": [b"data: {\n\n", DONE],
    }
    pieces = [chunk("One."), chunk(reason="stop"), *rests[fault]]
    stand_in.replies.append(Reply(pieces, is_cut=True))
    last = await asker.ask()
    assert (asker.text, last.outputs[0].finish_reason, last.error) == ("One.", "stop", None)
    assert len(stand_in.asked) == 1


async def test_an_engine_that_breaks_off_after_each_word_comes_to_an_end(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [broken(f"{number} ") for number in range(100)]
    last = await asker.ask(params={"max_tokens": 5})
    assert last.outputs[0].finish_reason == "error"
    assert len(stand_in.asked) < 10


async def test_an_engine_that_goes_on_with_no_answer_leaves_it_incomplete(
    open_engine: Open,
) -> None:
    stand_in = StandIn(server="system")
    asker = await open_engine(stand_in)
    assert asker.engine.exactness is Exactness.NONE
    stand_in.replies.append(broken("One, "))
    last = await asker.ask()
    assert asker.text == "One, "
    assert last.error is not None and last.error.code == CANNOT_CONTINUE
    assert len(stand_in.asked) == 1


@pytest.mark.parametrize("is_in_form", [True, False])
async def test_thoughts_and_forms_do_not_go_on_in_the_middle(
    open_engine: Open, is_in_form: bool
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    pieces = [chunk('{"a"')] if is_in_form else [chunk(reasoning_content="Hm"), chunk("One")]
    stand_in.replies.append(Reply(pieces, is_cut=True))
    form = asker.engine.call_form({}) if is_in_form else None
    last = await asker.ask(params={"structured_outputs": form})
    assert last.error is not None and last.error.code == CANNOT_CONTINUE


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


async def test_an_answer_of_another_worker_goes_on_after_its_text(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(Reply([chunk("two."), chunk(reason="stop"), usage(30, 1), DONE]))
    shown = encode_answer("One, ")
    last = await asker.ask(resume_token_ids=shown)
    assert asker.text == "two."
    assert stand_in.asked[0]["messages"][-1] == {"role": "assistant", "content": "One,"}
    assert last.counts == TokenCounts(30 - len(shown), 0, 1 + len(shown))
    assert asker.engine.resumed_text([], SamplingParams(), shown) == "One, "


async def test_an_answer_that_a_user_continues_goes_on_after_its_text(open_engine: Open) -> None:
    stand_in = StandIn(server="llamacpp")
    asker = await open_engine(stand_in)
    stand_in.replies.append(said(" two."))
    await asker.ask("One,")
    (asked,) = stand_in.asked
    assert asked["messages"] == [*HELLO, {"role": "assistant", "content": "One,"}]
    assert "continue_final_message" not in asked
    assert asker.text == " two."


# ---- thoughts, calls, stops ---------------------------------------------------------------------


async def test_thoughts_and_calls_are_told_from_the_text(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    pieces = [
        chunk(reasoning_content="I look "),
        chunk(reasoning="it up.</thought>"),
        chunk("Let us <call> see."),
        call_chunk(0, "weather", ""),
        call_chunk(0, None, '{"city": '),
        call_chunk(0, None, '"Brno"}'),
        call_chunk(1, "clock", "{}"),
        chunk(reason="tool_calls"),
        DONE,
    ]
    stand_in.replies.append(Reply(pieces))
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    await asker.ask(tools=tools)
    parser = AnswerParser(GRAMMAR, tools={"weather": {}, "clock": {}})
    events = [*parser.feed(asker.text), *parser.finish()]

    def deltas(kind: type) -> str:
        return "".join(event.delta for event in events if isinstance(event, kind))  # type: ignore[union-attr]

    assert deltas(ParsedReasoning) == "I look it up.</thought>"
    assert deltas(ParsedText) == "Let us <call> see."
    names = [event.name for event in events if isinstance(event, ParsedBegin)]
    assert names == ["weather", "clock"]
    assert deltas(ParsedArguments) == '{"city": "Brno"}{}'
    assert stand_in.asked[0]["tools"] == tools


async def test_what_servers_leave_out_is_no_fault(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    pieces = [
        b'data: {"choices": null, "usage": null}\n\n',
        b'data: {"choices": [{"delta": null, "finish_reason": ""}]}\n\n',
        chunk("One."),
        chunk(reason=""),
        b'data: {"choices": null, "usage": {"prompt_tokens": null}}\n\n',
        chunk(reason="stop"),
        DONE,
    ]
    stand_in.replies.append(Reply(pieces))
    last = await asker.ask()
    assert (asker.text, last.outputs[0].finish_reason, last.error) == ("One.", "stop", None)


# How servers tell calls from each other, beside OpenAI: (index, id, name, arguments).
CALLS: dict[str, list[tuple[int | None, str | None, str | None, Any]]] = {
    "by ids, all with index 0": [(0, "a", "weather", '{"city":1}'), (0, "b", "clock", "{}")],
    "by ids in pieces": [
        *[(0, "a", "weather", '{"ci'), (0, "a", None, 'ty":1}')],
        *[(0, "b", "clock", ""), (0, None, None, "{}")],
    ],
    "by ids without an index": [(None, "a", "weather", '{"city":1}'), (None, "b", "clock", "{}")],
    "with another id in each event": [
        *[(0, "a", "weather", ""), (0, "b", None, '{"city":1}')],
        *[(1, "c", "clock", "{"), (1, "d", None, "}")],
    ],
    "by neither": [(0, None, "weather", '{"city":1}'), (0, "", "clock", "{}")],
    "from 1 on": [(1, "a", "weather", '{"city":1}'), (2, "b", "clock", "{}")],
    "with names that are repeated": [
        *[(0, "a", "weather", '{"city"'), (0, "a", "weather", ":1}"), (1, "b", "clock", "{}")],
    ],
    "with arguments as they are": [(0, "a", "weather", {"city": 1}), (0, "b", "clock", {})],
}


@pytest.mark.parametrize("how", CALLS)
async def test_calls_are_told_from_each_other_however_servers_do_that(
    open_engine: Open, how: str
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    pieces = [
        chunk(
            tool_calls=[
                {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
            ]
        )
        for index, call_id, name, arguments in CALLS[how]
    ]
    stand_in.replies.append(Reply([*pieces, chunk(reason="tool_calls"), DONE]))
    last = await asker.ask()
    parser = AnswerParser(GRAMMAR, tools={"weather": {}, "clock": {}})
    events = [*parser.feed(asker.text), *parser.finish()]
    calls = [event.name for event in events if isinstance(event, ParsedBegin)]
    arguments = [event.delta for event in events if isinstance(event, ParsedArguments)]
    assert (calls, "".join(arguments)) == (["weather", "clock"], '{"city":1}{}')
    assert last.error is None


async def test_calls_whose_pieces_are_mixed_are_no_answer(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    pieces = [call_chunk(0, "weather", "{"), call_chunk(1, "clock", "{"), call_chunk(0, "w", "}")]
    stand_in.replies.append(Reply(pieces))
    last = await asker.ask()
    assert last.error is not None and last.error.code == CANNOT_CONTINUE


async def test_calls_of_before_are_told_in_the_engines_words(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(said("Yes"))
    function = {"name": "weather", "arguments": {"city": "Brno"}}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1", "name": "weather"},
    ]
    await asker.ask(messages=messages)
    _, answer, output = stand_in.asked[0]["messages"]
    assert answer["tool_calls"][0]["function"]["arguments"] == '{"city":"Brno"}'
    assert output == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


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


# ---- refusals, and what no engine should do -----------------------------------------------------


async def test_what_the_engine_refuses_is_told_in_its_words(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(refused(400, "the schema has\nno type"))
    last = await asker.ask()
    assert last.error is not None
    assert (last.error.code, last.error.message) == ("invalid_request", "the schema has no type")


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


async def test_a_stream_is_one_however_its_type_is_written(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    said_so = said("Yes")
    said_so.headers = {"Content-Type": "Text/Event-Stream; charset=latin-1"}
    stand_in.replies.append(said_so)
    await asker.ask()
    assert asker.text == "Yes"


async def test_an_engine_that_is_busy_is_asked_again(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [refused(429), refused(503), said("Yes")]
    await asker.ask()
    assert asker.text == "Yes"


MISBEHAVIOUR = {
    "silent": Reply([asyncio.Event()]),
    "half an event": Reply([chunk("Bad")[:30]], is_cut=True),
    "no event": Reply([b"data: {not json}\n\n"]),
    "half a character": Reply([b'data: {"choices": [{"delta": {"content": "\\ud800"}}]}\n\n']),
    "no stream": Reply([b"{}"], headers=JSON),
    "compressed": Reply([chunk("Bad")], headers=STREAM | {"Content-Encoding": "gzip"}),
    "elsewhere": Reply([], 307, {"Location": "http://127.0.0.1:1/"}),
    "an end without a reason": Reply([DONE]),
    "no UTF-8": Reply([b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n']),
    "half a character as it is": Reply(
        [b'data: {"choices": [{"delta": {"content": "\xed\xa0"}}]}\n\n']
    ),
    "nested without an end": Reply([b'data: {"x": ' + b"[" * 100_000 + b"\n\n"]),
    "an unknown reason": Reply([chunk(reason="because")]),
    "its own error": Reply([b'data: {"error": {"message": "boom"}}\n\n']),
    "a call without a name": Reply([call_chunk(0, None, "{}")]),
    "comments alone": Reply(ever=b": we are still here\n\n"),
    "events that say nothing": Reply(ever=chunk("", reasoning_content="")),
    "an endless event": Reply([b"data: " + b"x" * 600_000, b"y" * 600_000]),
}


@pytest.mark.parametrize("kind", MISBEHAVIOUR)
async def test_nothing_of_a_reply_that_is_none_is_shown(open_engine: Open, kind: str) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in, patience=HASTY)
    stand_in.replies += [MISBEHAVIOUR[kind], said("Good")]
    await asker.ask()
    assert asker.text == "Good"


async def test_an_answer_that_stands_still_is_asked_for_again_whatever_else_comes(
    open_engine: Open,
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in, patience=HASTY)
    stand_in.replies += [Reply([chunk("Good ")], ever=b": we are still here\n\n"), said("day")]
    await asker.ask()
    assert asker.text == "Good day"


async def test_of_an_engine_that_says_too_much_as_much_is_taken_as_was_asked_for(
    open_engine: Open,
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in, patience=HASTY)
    stand_in.replies.append(Reply([usage(10**6, 10**6), *[chunk("x" * 10_000)] * 100]))
    last = await asker.ask(params={"max_tokens": 1})
    assert (last.outputs[0].finish_reason, last.error) == ("length", None)
    assert asker.text == "x" * MAX_TOKEN_LENGTH
    assert last.counts is not None and (last.counts.num_output, last.counts.num_cached) == (1, 0)
    assert last.counts.num_prompt < 1000


async def test_an_answer_that_has_no_end_is_cut(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [Reply([chunk("")] * 20_000)] * 3
    last = await asker.ask(params={"max_tokens": 1})
    assert last.error is not None and "has no end" in last.error.message


async def test_an_engine_that_fails_in_vain_again_and_again_ends_the_answer(
    open_engine: Open,
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [broken("One"), broken(), broken(), said(" never")]
    last = await asker.ask()
    assert asker.text == "One"
    assert last.error is not None and last.error.code == "engine_error"
    assert len(stand_in.asked) == 3


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
