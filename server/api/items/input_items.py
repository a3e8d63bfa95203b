"""Items → the messages that are stored of them, or why they are refused.

What a model thinks, says and calls until somebody else speaks is one message; what its calls gave
back is one, too. Ids that a client sends are not kept: each message gets one, and the items of it
get theirs from that (`ids.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from server.api.items.ids import call_item_id
from server.protocol.client_frames import MAX_INPUT_BYTES, to_struct
from server.protocol.errors import ApiError, invalid_field
from sessions.model.ids import new_message_id
from sessions.model.records import Message, call_word

MAX_ITEMS: Final = 2000
MAX_ANSWER_BYTES: Final = 512 * 1024  # as of imports: of a model's text, thoughts, calls, outputs
CallId = Annotated[str, Meta(min_length=1, max_length=128)]
Status = Literal["in_progress", "completed", "incomplete"]


class Part(Struct, frozen=True):
    """Of a content that has several; other fields of it are what servers add."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[Part]


class Said(Struct, frozen=True):
    role: Literal["user", "system", "developer", "assistant"]
    content: Content
    status: Status | None = None


class Thought(Struct, frozen=True):
    content: list[Part] | None = None
    summary: list[Part] = []
    encrypted_content: str | None = None
    status: Status | None = None


class Caller(Struct, frozen=True):
    type: str


class Called(Struct, frozen=True, rename={"is_async": "async"}):
    call_id: CallId
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: str
    status: Status | None = None
    namespace: str | None = None
    caller: Caller | None = None
    is_async: bool | None = None


class GivenBack(Struct, frozen=True):
    output: Content
    call_id: CallId | None = None
    status: Status | None = None
    namespace: str | None = None
    caller: Caller | None = None


KINDS: Final[Mapping[str, type[Struct]]] = {
    "message": Said,
    "reasoning": Thought,
    "function_call": Called,
    "function_call_output": GivenBack,
}
TEXT_TYPES: Final = ("input_text", "output_text", "text")


def messages_of(
    items: Any,
    *,
    at_ms: int,
    parent_id: str | None = None,
    waiting: Collection[str] = (),
    param: str = "input",
) -> list[Message]:
    """Each below the one before, the first one below `parent_id`; all of them with new ids.

    `items` is decoded JSON: a string, which is a user's message, or a list. `waiting` are the
    calls of the conversation so far that still need an output (`waiting_calls`). `param` is what
    the client calls `items`. Raises `ApiError` with the path of what is refused.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise invalid_field(param, f"{param} is a list of items")
    if len(items) > MAX_ITEMS:
        raise invalid_field(param, f"{param} has more than {MAX_ITEMS} items")
    drafts = _Drafts(set(waiting))
    for place, item in enumerate(items):
        _take(drafts, item, f"{param}[{place}]")
    found: list[Message] = []
    for draft in drafts.finished():
        found.append(draft.message(parent_id, at_ms))
        parent_id = found[-1].id
    return found


def waiting_calls(path: Sequence[Message]) -> set[str]:
    """The calls at the end of a path for which their outputs have not all come yet.

    Outputs follow their calls: once somebody has said something, nothing waits any more.
    """
    answered: set[str] = set()
    for message in reversed(path):
        if message.outputs is None:
            answered |= {each["call_id"] for each in message.tool_outputs or ()}
            gone = message.redacted or ()
            return {
                call["call_id"]
                for place, call in enumerate(message.tool_calls or ())
                if call_word(place) not in gone
            } - answered
        answered |= {each["call_id"] for each in message.outputs}
    return set()


@dataclass(slots=True)
class _Draft:
    """A message, as far as its items have come."""

    role: Literal["user", "system", "developer", "assistant", "tool"]
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    outputs: list[dict[str, str]] = field(default_factory=list)
    is_whole: bool = True

    def message(self, parent_id: str | None, at_ms: int) -> Message:
        message_id = new_message_id()
        if self.outputs:
            return Message.of_outputs(message_id, parent_id, self.outputs, at_ms)
        calls = [
            {
                "type": "function_call",
                "id": call_item_id(message_id, place),
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed" if call.status in (None, "completed") else "incomplete",
            }
            for place, call in enumerate(self.calls)
        ]
        return Message(
            message_id,
            parent_id,
            self.role,
            "\n\n".join(self.texts),
            "completed" if self.is_whole else "interrupted",
            at_ms,
            reasoning="\n\n".join(self.thoughts) or None,
            tool_calls=calls or None,
        )


class _Drafts:
    """The messages of a list of items; `waiting` are calls that need an output now."""

    def __init__(self, waiting: set[str]) -> None:
        self.waiting = waiting
        self._drafts: list[_Draft] = []

    def finished(self) -> list[_Draft]:
        return self._drafts

    def speak(self, draft: _Draft) -> None:
        self.waiting = set()
        self._drafts.append(draft)

    def answer(self) -> _Draft:
        """The model's message that is being made, or a new one."""
        if not self._drafts or self._drafts[-1].role != "assistant":
            self.speak(_Draft("assistant"))
        return self._drafts[-1]

    def next_answer(self) -> _Draft:
        """Likewise for words: one that has some already stays, unless its calls wait for outputs.

        For outputs stand right after the message with their calls.
        """
        if self._drafts and self._drafts[-1].texts and not self._drafts[-1].calls:
            self.speak(_Draft("assistant"))
        return self.answer()

    def outputs(self) -> _Draft:
        if not self._drafts or self._drafts[-1].role != "tool":
            self._drafts.append(_Draft("tool"))
        return self._drafts[-1]


def _take(drafts: _Drafts, item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise invalid_field(where, "an item is an object")
    name = item.get("type") or "message"
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _not_here(f"{where}.type", "no items of this type")
    try:
        found = to_struct(item, kind)
    except ApiError as error:
        path = f"{where}.{error.param}" if error.param else where
        raise invalid_field(path, error.message) from None
    match found:
        case Said():
            _take_said(drafts, found, where)
        case Thought():
            _take_thought(drafts, found, where)
        case Called():
            _take_call(drafts, found, where)
        case GivenBack():
            _take_output(drafts, found, where)


def _take_said(drafts: _Drafts, said: Said, where: str) -> None:
    text = _text(said.content, f"{where}.content")
    if said.role == "assistant":
        _check_length(text, MAX_ANSWER_BYTES, f"{where}.content")
        draft = drafts.next_answer()
        draft.texts.append(text)
        draft.is_whole = said.status in (None, "completed")
        return
    _check_length(text, MAX_INPUT_BYTES, f"{where}.content")
    if not text.strip():
        raise invalid_field(f"{where}.content", "a message is empty")
    drafts.speak(_Draft(said.role, [text]))


def _take_thought(drafts: _Drafts, thought: Thought, where: str) -> None:
    parts = thought.content or thought.summary
    name = "content" if thought.content else "summary"
    for place, part in enumerate(parts):
        if part.type not in ("reasoning_text", "summary_text") or part.text is None:
            raise _not_here(f"{where}.{name}[{place}].type", "thoughts are text")
    text = "\n\n".join(part.text or "" for part in parts)
    if not text and thought.encrypted_content:
        raise _not_here(f"{where}.encrypted_content", "it cannot be read here")
    _check_length(text, MAX_ANSWER_BYTES, f"{where}.content")
    if text:
        drafts.next_answer().thoughts.append(text)


def _take_call(drafts: _Drafts, call: Called, where: str) -> None:
    _check_context(call, where)
    if call.is_async:
        raise _not_here(f"{where}.async", "an answer waits for its calls")
    _check_length(call.arguments, MAX_ANSWER_BYTES, f"{where}.arguments")
    draft = drafts.answer()
    if call.call_id in {each.call_id for each in draft.calls}:
        raise invalid_field(f"{where}.call_id", "two calls have the same call_id")
    draft.calls.append(call)
    drafts.waiting.add(call.call_id)


def _take_output(drafts: _Drafts, given: GivenBack, where: str) -> None:
    _check_context(given, where)
    output = _text(given.output, f"{where}.output")
    _check_length(output, MAX_INPUT_BYTES, f"{where}.output")
    if given.call_id is None or given.call_id not in drafts.waiting:
        problem = "an output stands after its call, and no call before it waits for this one"
        raise invalid_field(f"{where}.call_id", problem)
    drafts.waiting.remove(given.call_id)
    drafts.outputs().outputs.append({"call_id": given.call_id, "output": output})


def _check_context(item: Called | GivenBack, where: str) -> None:
    """Whose call it is: there are only those of a client and of a model."""
    if item.namespace is not None:
        raise _not_here(f"{where}.namespace", "tools have no namespaces")
    if item.caller is not None and item.caller.type != "direct":
        raise _not_here(f"{where}.caller", "models call tools directly")


def _text(content: Content, where: str) -> str:
    """Its parts, one after the other."""
    if isinstance(content, str):
        return content
    texts = []
    for place, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*TEXT_TYPES, "refusal") or text is None:
            raise _not_here(f"{where}[{place}].type", "a message is text")
        texts.append(text)
    return "".join(texts)


def _check_length(text: str, most: int, where: str) -> None:
    if len(text.encode()) > most:
        raise ApiError("message_too_large", f"it is longer than {most} bytes", param=where)


def _not_here(param: str, what: str) -> ApiError:
    """A field that has a meaning elsewhere; to take it for nothing would mislead."""
    return invalid_field(param, f"{param} is not supported here: {what}")
