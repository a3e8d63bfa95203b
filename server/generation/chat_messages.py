"""Stored messages → the conversation that a chat template is given, with calls and their outputs.

A call without an output is in no prompt: many templates have no way to write one. Those that the
server has carried out have theirs with them, and are there although a question follows. Calls have
short ids there, since some templates take no other.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from sessions.model.records import Message, call_word, output_word

ChatMessage = dict[str, Any]  # {"role": …, "content": …, "tool_calls"?: …}
ID_DIGITS = 9  # what Mistral's templates insist on
MAX_DEPTH = 64  # of arguments; beyond a few hundred nobody can walk through them


def is_said(message: Message) -> bool:
    """Whether a prompt has anything of it; not of an answer that was stopped before any text."""
    return bool(message.text or message.tool_calls or message.outputs)


def template_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The definitions as chat templates expect them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def chat_messages(
    system: str, messages: Sequence[Message], *, with_calls: bool, arguments_as_text: bool = False
) -> list[ChatMessage]:
    """The messages of a prompt; those of one role that follow each other are one.

    Without `with_calls`, for a template that knows none, calls and outputs are left out. Most
    templates want arguments as an object, and some as their JSON: `arguments_as_text`.
    """
    found: list[ChatMessage] = []
    if system:
        found.append({"role": "system", "content": system})
    messages = _shown(messages)
    for place, message in enumerate(messages):
        if message.outputs:
            if with_calls:
                before = messages[place - 1] if place else None
                found += _output_messages(message, before)
            continue
        calls: list[dict[str, Any]] = []
        following = messages[place + 1] if place + 1 < len(messages) else None
        answering = following if following is not None and following.outputs else None
        if answering is None and message.tool_outputs:
            answering = Message.of_outputs("", message.id, message.tool_outputs, 0)
        if with_calls and answering is not None:
            calls = _calls(message, answering, as_text=arguments_as_text)
        if calls:
            found.append({"role": message.role, "content": message.text, "tool_calls": calls})
            if answering is not None and answering is not following:
                found += _output_messages(answering, message)
        elif message.text:
            _add_text(found, message)
    return found


def _shown(messages: Sequence[Message]) -> list[Message]:
    """Without what was deleted of them; outputs that came one after the other are together."""
    shown: list[Message] = []
    for message in messages:
        if message.redacted:
            message = _rest(message)
        before = shown[-1].outputs if shown else None
        if message.outputs and before:
            shown[-1] = replace(shown[-1], outputs=before + message.outputs)
        else:
            shown.append(message)
    return shown


def _rest(message: Message) -> Message:
    gone = message.redacted or ()
    calls, outputs = message.tool_calls or (), message.outputs
    if outputs is not None:
        outputs = [each for at, each in enumerate(outputs) if output_word(at) not in gone]
    calls = [each for at, each in enumerate(calls) if call_word(at) not in gone]
    return replace(message, tool_calls=calls or None, outputs=outputs)


def calls_text(message: Message) -> str:
    """About what a prompt has of its calls."""
    return orjson.dumps(message.tool_calls).decode() if message.tool_calls else ""


def _add_text(found: list[ChatMessage], message: Message) -> None:
    last = found[-1] if found else {}
    role = "system" if message.role == "developer" else message.role  # templates know no other
    if last.get("role") == role and "tool_calls" not in last:
        # Many templates insist on alternating roles; an answer without text leaves a gap.
        last["content"] += "\n\n" + message.text
    else:
        found.append({"role": role, "content": message.text})


def _calls(message: Message, outputs: Message, *, as_text: bool) -> list[dict[str, Any]]:
    answered = {output["call_id"] for output in outputs.outputs or ()}
    return [
        {
            "id": short_id(call["call_id"]),
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": call["arguments"] if as_text else arguments_object(call["arguments"]),
            },
        }
        for call in message.tool_calls or ()
        if call["call_id"] in answered
    ]


def _output_messages(message: Message, before: Message | None) -> list[ChatMessage]:
    calls = (before.tool_calls if before is not None else None) or []
    names = {call["call_id"]: call["name"] for call in calls}
    return [
        {
            "role": "tool",
            "content": output["output"],
            "tool_call_id": short_id(output["call_id"]),
            "name": names[output["call_id"]],
        }
        for output in message.outputs or ()
        if output["call_id"] in names
    ]


def arguments_object(arguments: str) -> Any:
    """As most templates take them; the text itself, if it is no JSON, or nested very deep."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:  # what is JSON to others: a very large number, for instance
        return arguments
    return arguments if _is_deeper(found, MAX_DEPTH) else found


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(part, levels - 1) for part in parts)


def short_id(call_id: str) -> str:
    """As templates take it."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:ID_DIGITS]
