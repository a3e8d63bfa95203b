"""Thoughts and calls of an engine of texts, however its server writes them."""

from typing import Any

import pytest

from server.engines.client import (
    CANNOT_CONTINUE,
    AnswerParser,
    ParsedArguments,
    ParsedBegin,
    ParsedReasoning,
    ParsedText,
)
from server.engines.textual.answers import GRAMMAR
from tests.server.engines.textual.asking import HELLO, Open
from tests.server.engines.textual.stand_in import (
    DONE,
    Reply,
    StandIn,
    call_chunk,
    chunk,
    said,
)


async def test_thoughts_and_calls_are_separated_from_the_text(open_engine: Open) -> None:
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
        # All kinds that are asked for have a `delta`, which no type of a kind can say.
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


# How servers mark calls, beside OpenAI: (index, id, name, arguments).
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
async def test_calls_are_kept_apart_however_servers_mark_them(open_engine: Open, how: str) -> None:
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


async def test_earlier_calls_are_sent_in_the_engines_words(open_engine: Open) -> None:
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
