"""Stored messages → items, as OpenAI's clients read them.

One message may be several items, always in this order: what was thought, what was said, what was
called. Calls that the server itself has carried out are `mcp_call`, with their outcome.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from server.api.items.ids import (
    call_item_id,
    output_item_id,
    reasoning_id,
    server_call_item_id,
)
from sessions.model.records import MESSAGE, Message, call_word, output_word

Item = dict[str, Any]
STATUS: Final = {"in_progress": "in_progress", "completed": "completed"}  # others: incomplete


def items_of(message: Message, served: Collection[str] = ()) -> list[Item]:
    """The items of one message, oldest first.

    `served` are the ids of the calls before it that the server has carried out: their outputs are
    in the items of those calls already.
    """
    if message.outputs is not None:
        return list(_outputs(message, served))
    is_there = MESSAGE not in (message.redacted or ())
    if message.role != "assistant":
        content = [{"type": "input_text", "text": message.text}]
        return [message_item(message, content)] if is_there else []
    items: list[Item] = []
    if message.reasoning:
        items.append(reasoning_item(message))
    if message.text or (is_there and not (message.reasoning or message.tool_calls)):
        items.append(message_item(message, _said(message.text)))
    return [*items, *_calls(message)]


def items_of_path(messages: Iterable[Message], before: Message | None = None) -> list[Item]:
    """The items of messages that follow each other, oldest first; `before` stands before them."""
    found: list[Item] = []
    served = served_calls(before)
    for message in messages:
        found += items_of(message, served)
        if message.outputs is None:
            served = served_calls(message)
    return found


def served_calls(message: Message | None) -> frozenset[str]:
    """The ids of those calls of a message that the server has carried out."""
    outputs = None if message is None else message.tool_outputs
    return frozenset(each["call_id"] for each in outputs or ())


def message_item(message: Message, content: list[dict[str, Any]]) -> Item:
    """What was said."""
    return {
        "id": message.id,
        "type": "message",
        "role": message.role,
        "status": STATUS.get(message.status, "incomplete"),
        "content": content,
    }


def reasoning_item(message: Message) -> Item:
    """What was thought: all of it, and no summary."""
    return {
        "id": reasoning_id(message.id),
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": message.reasoning or ""}],
        "status": STATUS.get(message.status, "incomplete"),
    }


def call_item(message_id: str, place: int, call: Mapping[str, Any]) -> Item:
    """A call that the client answers, as it is stored or as the log has it."""
    return {
        "id": call_item_id(message_id, place),
        "type": "function_call",
        "call_id": call["call_id"],
        "name": call["name"],
        "arguments": call["arguments"],
        "status": STATUS.get(call["status"], "incomplete"),
    }


def server_call_item(
    message_id: str, place: int, call: Mapping[str, Any], output: Mapping[str, Any]
) -> Item:
    """A call that the server carries out; `output` is the stored item that says what became of it.

    The content of `error` is what the model read in the place of a result.
    """
    status = output["status"]
    is_over = status not in ("awaiting_consent", "in_progress")
    has_result = status == "completed"
    error = None
    if is_over and not has_result:
        error = {"type": "mcp_tool_execution_error", "content": output["output"]}
    return {
        "id": server_call_item_id(message_id, place),
        "type": "mcp_call",
        "server_label": output["server_label"],
        "name": call["name"],
        "arguments": call["arguments"],
        "output": output["output"] if has_result else None,
        "error": error,
        "status": "completed" if has_result else "failed" if is_over else "calling",
    }


def _said(text: str) -> list[dict[str, Any]]:
    return [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] * bool(text)


def _calls(message: Message) -> Iterator[Item]:
    outputs = {each["call_id"]: each for each in message.tool_outputs or ()}
    gone = message.redacted or ()
    for place, call in enumerate(message.tool_calls or ()):
        if call_word(place) in gone:
            continue
        output = outputs.get(call["call_id"])
        if output is None:
            yield call_item(message.id, place, call)
        else:
            yield server_call_item(message.id, place, call, output)


def _outputs(message: Message, served: Collection[str]) -> Iterator[Item]:
    gone = message.redacted or ()
    for place, output in enumerate(message.outputs or ()):
        if output["call_id"] not in served and output_word(place) not in gone:
            yield {
                "id": output_item_id(message.id, place),
                "type": "function_call_output",
                "call_id": output["call_id"],
                "output": output["output"],
                "status": "completed",
            }
