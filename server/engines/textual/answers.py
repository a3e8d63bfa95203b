"""What an engine's stream says of an answer → marked text, which `AnswerParser` reads.

Thoughts and calls come apart from the text here. In marked text they stand between marks, single
characters that no text can have: so nothing that a model writes can be taken for one.
"""

from typing import Any

import msgspec

from engine.client.parsing.anchors import Anchor
from engine.client.parsing.calls import NamedCalls
from engine.client.parsing.grammar import Field, Format
from engine.client.parsing.marks import AddedToken
from server.engines.client import Grammar
from server.engines.remote.wire.problems import Broken

_THOUGHT = "<thought>", "</thought>"
_CALL = "<call>", "</call>"
_ARGUMENTS = "<arguments>"

FORMAT = Format(
    "openai",
    (
        Field("reasoning", Anchor((_THOUGHT[0],)), Anchor((_THOUGHT[1],)), is_stripped=False),
        Field(
            "call",
            Anchor((_CALL[0],)),
            Anchor((_CALL[1],)),
            NamedCalls(name_ends=(_ARGUMENTS,)),
        ),
    ),
    implicit=Field("text", is_stripped=False),
)
GRAMMAR = Grammar(
    FORMAT,
    [
        AddedToken(number, text, is_shown=False)
        for number, text in enumerate((*_THOUGHT, *_CALL, _ARGUMENTS))
    ],
)
_MARKS = {text: GRAMMAR.marks.mark(text) for text in (*_THOUGHT, *_CALL, _ARGUMENTS)}


class CalledFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments. Some servers give them as what they mean."""
        given = self.arguments
        return msgspec.json.encode(given).decode() if isinstance(given, dict) else given or ""


class CallDelta(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: CalledFunction | None = None


class ContentPart(msgspec.Struct, frozen=True):
    text: str | None = None


class Delta(msgspec.Struct, frozen=True):
    """What is new. Servers have two names for thoughts."""

    given: str | list[ContentPart] | None = msgspec.field(default=None, name="content")
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None

    @property
    def content(self) -> str | None:
        """Text. Some servers give it in parts; those that have none are left out."""
        if isinstance(self.given, list):
            return "".join(part.text or "" for part in self.given)
        return self.given


class Choice(msgspec.Struct, frozen=True):
    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # of vLLM


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptDetails | None = None

    def is_possible(self, max_prompt: int, max_output: int) -> bool:
        """Whether an engine can have read and written so much."""
        limits = (
            (self.prompt_tokens, max_prompt),
            (self.completion_tokens, max_output),
            (self.num_cached, max_prompt),
        )
        return all(number is not None and 0 <= number <= limit for number, limit in limits)

    @property
    def num_prompt(self) -> int:
        return self.prompt_tokens or 0

    @property
    def num_output(self) -> int:
        return self.completion_tokens or 0

    @property
    def num_cached(self) -> int:
        details = self.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream; what else it has is nobody's business here."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None

    @property
    def choice(self) -> Choice | None:
        return self.choices[0] if self.choices else None

    @property
    def says_something(self) -> bool:
        """Of the answer itself. Some servers begin with an event that only names its author."""
        delta = None if self.choice is None else self.choice.delta
        if delta is None:
            return False
        return any((delta.content, delta.reasoning_content, delta.reasoning, delta.tool_calls))


read_chunk = msgspec.json.Decoder(Chunk).decode


def length_of(delta: Delta) -> int:
    """In characters, of all that it says."""
    texts = [delta.content, delta.reasoning_content or delta.reasoning]
    for call in delta.tool_calls or ():
        if call.function is not None:
            texts += [call.function.name, call.function.text]
    return sum(len(text) for text in texts if text)


def clipped(delta: Delta, max_length: int) -> Delta:
    """What of it comes first: thoughts, text, calls."""
    thought = (delta.reasoning_content or delta.reasoning or "")[:max_length]
    left = max_length - len(thought)
    content = (delta.content or "")[:left]
    left -= len(content)
    calls = []
    for call in delta.tool_calls or ():
        if call.function is not None and len(call.function.name or "") < left:
            left -= len(call.function.name or "")
            function = CalledFunction(call.function.name, call.function.text[:left])
            left -= len(function.text)
            calls.append(CallDelta(call.index, call.id, function))
    return Delta(content, thought, None, calls)


class AnswerText:
    """The marked text of one answer, as far as it has come. `begun` is what it had before."""

    def __init__(self, begun: str = "", *, is_marked: bool = True) -> None:
        self._is_marked = is_marked
        self._parts: list[str] = [begun]
        self._region: str | int = "text"  # "reasoning", or the place of a call
        self._calls = Calls()
        self._is_plain = begun == plain(begun)

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def is_plain(self) -> bool:
        """Whether it is text alone, so that the engine can be given it as the answer so far."""
        return self._is_plain

    def feed(self, delta: Delta) -> str:
        """The marked text of what is new. Raises `Broken`."""
        said = []
        if thought := delta.reasoning_content or delta.reasoning:
            said.append(self._in_region("reasoning", thought))
        if delta.content:
            said.append(self._in_region("text", delta.content))
        for call in delta.tool_calls or ():
            said.append(self._called(call))
        return self._keep("".join(said))

    def finish(self) -> str:
        """What is still to be said when the engine has ended it."""
        return self._keep(self._leave())

    def _keep(self, text: str) -> str:
        self._parts.append(text)
        return text

    def _in_region(self, region: str, text: str) -> str:
        if not self._is_marked:
            return text if region == "text" else ""
        before = "" if region == self._region else self._leave()
        if region == "reasoning" and region != self._region:
            self._is_plain = False
            before += _MARKS[_THOUGHT[0]]
        self._region = region
        return before + text

    def _called(self, call: CallDelta) -> str:
        if not self._is_marked:
            return ""
        function = call.function or CalledFunction()
        place, is_new = self._calls.place_of(call)
        said = ""
        if is_new:
            said = self._leave() + _MARKS[_CALL[0]] + (function.name or "") + _MARKS[_ARGUMENTS]
            self._region, self._is_plain = place, False
        elif self._region != place:
            raise Broken("its calls of tools are in no order")
        return said + self._calls.add(function.text)

    def _leave(self) -> str:
        region, self._region = self._region, "text"
        if region == "text":
            return ""
        return _MARKS[_THOUGHT[1] if region == "reasoning" else _CALL[1]]


class Calls:
    """Tells the calls of one answer from each other, one after the other, by what servers say of
    them: OpenAI by their index, others by their ids, and some by neither, but give each as a whole.
    """

    def __init__(self) -> None:
        self._num_calls = 0
        self._index: int | None = None  # of the last one
        self._id: str | None = None  # likewise
        self._indices: set[int] = set()
        self._arguments: list[str] = []  # of the last one

    def place_of(self, call: CallDelta) -> tuple[int, bool]:
        """Which call it is of, and whether it begins that one. Raises `Broken`."""
        name = None if call.function is None else call.function.name
        if not self._begins(call, name):
            return self._num_calls, False
        if not name or (call.index in self._indices and call.index != self._index):
            raise Broken("its calls of tools are in no order")
        self._num_calls += 1
        self._index, self._id, self._arguments = call.index, call.id or None, []
        if call.index is not None:
            self._indices.add(call.index)
        return self._num_calls, True

    def add(self, arguments: str) -> str:
        """Of the last one."""
        if arguments:
            self._arguments.append(arguments)
        return arguments

    def _begins(self, call: CallDelta, name: str | None) -> bool:
        if not self._num_calls or (call.index is not None and call.index != self._index):
            return True
        if not name:  # some servers make up another id for each event
            return False
        if call.id and self._id:
            return call.id != self._id
        return self._is_whole

    @property
    def _is_whole(self) -> bool:
        try:
            return isinstance(msgspec.json.decode("".join(self._arguments)), dict)
        except (ValueError, RecursionError):
            return False


def plain(text: str) -> str:
    """Marked text without what its marks stand for."""
    return GRAMMAR.marks.plain(text)


class Seam:
    """Joins what an engine says to the text that it was asked to go on with.

    Models, and the templates before them, take white space at the end of an answer for a part of
    what follows. So the engine gets the text without, and writes it again: that is not shown twice.
    """

    def __init__(self, shown: str) -> None:
        self.sent = shown.rstrip()
        self._tail = shown[len(self.sent) :]
        self._held = ""

    def feed(self, new: str) -> str:
        """What is new of it, as soon as that is certain."""
        if not self._tail:
            return new
        self._held += new
        if len(self._held) < len(self._tail) and not self._held.strip():
            return ""
        return self.finish()

    def finish(self) -> str:
        """What was held. Nothing that follows belongs to the seam."""
        new, tail = self._held, self._tail
        self._held = self._tail = ""
        starts = (start for start in range(len(tail)) if new.startswith(tail[start:]))
        return new[len(tail) - next(starts, len(tail)) :]
