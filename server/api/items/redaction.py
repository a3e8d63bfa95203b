"""A message without one of its items: what it said is gone, and its place in the tree stays.

Other items of the message keep their ids, and forget in which order they came. What is left of a
call and of an output is their names.
"""

from dataclasses import replace
from typing import Any

from server.api.items.ids import (
    call_item_id,
    output_item_id,
    reasoning_id,
    server_call_item_id,
)
from sessions.model.records import MESSAGE, REASONING, Message, call_word, output_word


def without_item(message: Message, item_id: str) -> Message | None:
    """None if the message has no item of this id, or no longer."""
    gone = message.redacted or []
    if message.outputs is not None:
        for place in range(len(message.outputs)):
            if item_id == output_item_id(message.id, place) and output_word(place) not in gone:
                return _without_output(message, place)
        return None
    if item_id == message.id and MESSAGE not in gone:
        has_words = message.text or not (message.reasoning or message.tool_calls)
        return (
            replace(message, text="", order=None, redacted=[*gone, MESSAGE]) if has_words else None
        )
    if item_id == reasoning_id(message.id) and message.reasoning:
        return replace(message, reasoning=None, order=None, redacted=[*gone, REASONING])
    for place in range(len(message.tool_calls or ())):
        ids = (call_item_id(message.id, place), server_call_item_id(message.id, place))
        if item_id in ids and call_word(place) not in gone:
            return _without_call(message, place)
    return None


def without_output_of(message: Message, call_id: str) -> Message | None:
    """A tool's message without the output of that call; None if there is none."""
    for place, output in enumerate(message.outputs or ()):
        if output["call_id"] == call_id and output_word(place) not in (message.redacted or ()):
            return _without_output(message, place)
    return None


def _without_output(message: Message, place: int) -> Message:
    outputs = [dict(each) for each in message.outputs or ()]
    outputs[place]["output"] = ""
    text = "".join(each["output"] for each in outputs)
    gone = [*(message.redacted or ()), output_word(place)]
    return replace(message, outputs=outputs, text=text, redacted=gone)


def _without_call(message: Message, place: int) -> Message:
    calls: list[dict[str, Any]] = [dict(each) for each in message.tool_calls or ()]
    calls[place]["arguments"] = ""
    call_id = calls[place]["call_id"]
    outputs = [
        {**each, "output": ""} if each["call_id"] == call_id else each
        for each in message.tool_outputs or ()
    ]
    gone = [*(message.redacted or ()), call_word(place)]
    return replace(message, tool_calls=calls, tool_outputs=outputs or None, redacted=gone)
