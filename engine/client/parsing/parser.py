"""`AnswerParser`: marked text in pieces → events, the same ones however the text is cut.

Only what is certain is said, so that nothing has to be taken back; what may still become something
else waits, and mostly for one token. A call that turns out to be none, before anything was said of
it, is text: what follows its first marker is read again. White space between regions belongs to
neither, except between two stretches of text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from engine.client.parsing.anchors import Found, PatternFailed
from engine.client.parsing.calls import Body, BodySyntax, CallWriter, Tools
from engine.client.parsing.events import Event, ReasoningDelta, TextDelta, joined
from engine.client.parsing.grammar import Field, Grammar

_BETWEEN_BARE = re.compile(r"[\s;]*")  # what stands between calls without markers
_KEPT = 256  # characters before what is looked at, for patterns that look back
_CUT_AT = 4096
_PIECE = 1024  # characters that are looked at together: patterns may take their square


class AnswerParser:
    """Reads one answer.

    `tools` are those that the model was offered, with the schemas of their arguments; None: it was
    offered none, and what looks like a call is text. `make_id` names a call by its number, the same
    whenever the answer is read again. `prompt` is the marked end of the prompt, in which the answer
    may have begun: `<think>`.
    """

    def __init__(
        self,
        grammar: Grammar,
        *,
        tools: Tools | None = None,
        make_id: Callable[[int], str] = "call_{}".format,
        prompt: str = "",
    ) -> None:
        self._grammar = grammar
        self._has_calls = tools is not None
        self._tools = tools or {}
        self._events: list[Event] = []
        self._plain = grammar.marks.plain
        self._writer = CallWriter(self._events.append, grammar.marks, make_id)
        self._said = {
            "text": _Said(self._events, TextDelta, keeps_beginning=True),
            "reasoning": _Said(self._events, ReasoningDelta, keeps_beginning=False),
        }
        self._text = ""
        self._at = 0  # what lies before it was taken
        self._field = grammar.format.implicit
        self._body: Body | None = None  # of the region of calls that this is
        self._body_at = 0  # where that begins, after its marker
        self._marker = ""  # the marker
        self._num_before = 0  # calls before it
        self._may_be_bare = self._has_calls and grammar.format.bare is not None
        self._is_given_up = grammar.is_plain
        if prompt:
            self._read_prompt(prompt)

    def feed(self, text: str) -> list[Event]:
        """What more text makes certain."""
        for start in range(0, len(text), _PIECE):
            self._text += text[start : start + _PIECE]
            self._read(is_end=False)
        return self._take()

    def finish(self) -> list[Event]:
        """What the end of the answer makes certain. Nothing may come after it."""
        self._read(is_end=True)
        if self._field.role in self._said:
            self._said[self._field.role].flush()
        return self._take()

    @property
    def thought(self) -> Field | None:
        """The thought that is being read; None outside of one."""
        return self._field if self._field.role == "reasoning" else None

    @property
    def thought_end(self) -> str:
        """What ends the thought that is being read; "" outside of one, or if nobody can say."""
        ends = None if self.thought is None else self.thought.ends
        return ends.texts[0] if ends is not None and ends.texts else ""

    def _read_prompt(self, prompt: str) -> None:
        """Begin where the prompt ends. What it has of the answer is not said again."""
        starts, at = self._grammar.starts, -1
        if starts is not None:
            while (found := starts.look(prompt, max(at, 0), is_end=True)[0]) is not None:
                at = found.end
        if at >= 0:
            self.feed(prompt[at:])
        else:
            self._field = self._grammar.begun_in(prompt)
        if self._body is not None:
            self._field, self._body = self._grammar.format.implicit, None
        self._text, self._at = "", 0
        for each in self._said.values():
            each.forget()

    def _take(self) -> list[Event]:
        events = joined(self._events)
        self._events.clear()
        self._cut()
        return events

    def _cut(self) -> None:
        """Forget the text that was taken, and will not be read again."""
        done = self._body_at if self._is_uncertain else self._at
        if done > _CUT_AT:
            start = done - _KEPT
            self._text = self._text[start:]
            self._at -= start
            self._body_at -= start

    @property
    def _is_uncertain(self) -> bool:
        """Whether what is read as a call may still be none."""
        return self._body is not None and self._writer.num_begun == self._num_before

    def _read(self, *, is_end: bool) -> None:
        try:
            while not self._is_given_up and self._step(is_end):
                pass
        except PatternFailed:
            self._is_given_up = True
            if self._is_uncertain:
                self._fail()
            elif self._body is not None:
                self._leave_call(is_cut=True)
        if self._is_given_up and self._at < len(self._text):
            role = "reasoning" if self._field.role == "reasoning" else "text"
            self._said[role].add(self._plain(self._text[self._at :]), is_stripped=False)
            self._at = len(self._text)

    def _step(self, is_end: bool) -> bool:
        """Take some of the text; whether there may be more to take of what is here."""
        if self._body is not None:
            return self._read_call(self._body, is_end)
        if self._may_be_bare:
            return self._look_for_bare(is_end)
        if self._field is self._grammar.format.implicit:
            watch, fields = self._grammar.outside(has_calls=self._has_calls)
        else:
            watch, fields = self._grammar.end_of(self._field), [None]
        found, pending = watch.look(self._text, self._at, is_end=is_end)
        self._say(self._text[self._at : pending if found is None else found.start])
        self._at = pending if found is None else found.end
        if found is None:
            return False
        field = fields[found.number]
        if field is None:
            self._leave()
        elif field.body is None:
            self._leave()
            self._field = field
        else:
            self._enter_call(field, field.body, found)
        return True

    def _say(self, text: str) -> None:
        if text and self._field.role in self._said:
            said = self._said[self._field.role]
            said.add(self._plain(text), is_stripped=self._field.is_stripped)

    def _leave(self) -> None:
        for each in self._said.values():
            each.end_region()
        self._field = self._grammar.format.implicit

    # ---- calls ----------------------------------------------------------------------------------

    def _look_for_bare(self, is_end: bool) -> bool:
        """Whether a call without markers begins here; only white space may stand before it."""
        between = _BETWEEN_BARE.match(self._text, self._at)
        assert between is not None and self._grammar.format.bare is not None
        at = between.end()
        if at == len(self._text) and not is_end:
            return False
        if at < len(self._text) and self._text[at] == "{":
            field = Field("call", body=self._grammar.format.bare)
            found = Found(self._at, self._at, 0, {})
            self._enter_call(field, self._grammar.format.bare, found)
            self._at = at
        else:
            self._may_be_bare = False
            if self._writer.num_begun and at == len(self._text):
                self._at = at
        return True

    def _enter_call(self, field: Field, syntax: BodySyntax, found: Found) -> None:
        self._field = field
        self._num_before = self._writer.num_begun
        self._marker = self._text[found.start : found.end]
        self._body_at = found.end
        self._body = syntax.body(self._writer, self._tools, found.captures)
        if self._body.is_failed:
            self._fail()

    def _read_call(self, body: Body, is_end: bool) -> bool:
        field = self._field
        found, pending = self._grammar.end_of(field).look(self._text, self._at, is_end=is_end)
        end = pending if found is None else found.start
        if self._at < end and not body.is_done:
            self._at += body.feed(self._text[self._at : end])
        if body.is_failed:
            self._fail()
            return True
        if body.is_done and self._field.ends is None:
            self._leave_call(is_cut=False)
            return True
        self._at = end  # after the calls of a region
        if found is None:
            if self._at < len(self._text) and body.in_string and self._grammar.is_spelled(field):
                self._at += body.feed(self._text[self._at :])  # there it would be a text's as well
            if is_end:
                self._leave_call(is_cut=True)
            return is_end
        self._at = found.end
        if body.in_string and not self._grammar.is_certain(self._text[found.start : found.end]):
            body.feed(self._text[found.start : found.end])
        else:
            self._leave_call(is_cut=False)
        return True

    def _leave_call(self, *, is_cut: bool) -> None:
        assert self._body is not None
        self._body.close(is_cut=is_cut)
        if self._is_uncertain:
            self._fail()
        else:
            self._body = None
            self._leave()

    def _fail(self) -> None:
        """It is no call: its marker is text, and what follows that is read again."""
        self._body = None
        self._field = self._grammar.format.implicit
        self._may_be_bare = False
        self._at = self._body_at
        self._said["text"].add(self._plain(self._marker), is_stripped=True)


class _Said:
    """One of the texts, without the white space that regions stand in."""

    def __init__(
        self, events: list[Event], event: Callable[[str], Event], *, keeps_beginning: bool
    ) -> None:
        self._events = events
        self._event = event
        self._keeps_beginning = keeps_beginning
        self._space: list[str] = []  # that may be the region's end
        self._has_said = False
        self._is_after_region = False  # nothing was said since one has ended

    def add(self, text: str, *, is_stripped: bool) -> None:
        if is_stripped:
            said = text.rstrip()
            space = text[len(said) :]
            text = said
        else:
            space = ""
        if text:
            self._flush(text, keeps_beginning=self._keeps_beginning or not is_stripped)
        if space:
            self._space.append(space)

    def end_region(self) -> None:
        """From now on white space at the beginning is none of the text."""
        self._keeps_beginning = False
        self._is_after_region = True
        if not self._has_said:
            self._space.clear()

    def flush(self) -> None:
        """The end of the answer, in a region of this text: what it ends with is its own."""
        if not self._is_after_region:
            self._flush("", keeps_beginning=self._keeps_beginning)

    def forget(self) -> None:
        """What was said so far was not for anybody."""
        self._has_said = False
        self._space.clear()

    def _flush(self, text: str, *, keeps_beginning: bool) -> None:
        whole = "".join(self._space) + text
        self._space.clear()
        if not (self._has_said or keeps_beginning):
            whole = whole.lstrip()
        if whole:
            self._has_said, self._is_after_region = True, False
            self._events.append(self._event(whole))
