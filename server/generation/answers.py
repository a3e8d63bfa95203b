"""`AnswerReader`: tells what a model thinks, and what it calls, from what it answers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from server.engines.client import (
    AnswerParser,
    EngineClient,
    Marks,
    ParsedArguments,
    ParsedBegin,
    ParsedEnd,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
)

Tools = Mapping[str, Mapping[str, Any]]  # name → JSON schema of the arguments


class Part(NamedTuple):
    """New text of an answer, or of the thoughts before it."""

    text: str
    is_reasoning: bool = False


CallPart = ParsedBegin | ParsedArguments | ParsedEnd  # of a call of a tool
Said = Part | CallPart


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Tools | None:
    """What is said of arguments, by name; None where no tool is offered."""
    return {tool["name"]: tool.get("parameters") or {} for tool in tools} if tools else None


class AnswerReader:
    """One answer of an engine, from its prompt on.

    `tools` are those that the model was offered; None: what looks like a call is text. An answer
    that `must_call` has no text: what is none yet of a call that was cut is nothing.
    """

    def __init__(
        self,
        engine: EngineClient,
        prompt_token_ids: Sequence[int],
        tools: Tools | None = None,
        *,
        must_call: bool = False,
    ) -> None:
        self._must_call = must_call
        grammar = engine.answer_grammar
        self.marks: Marks | None = None  # that the engine's text must have; None: none
        self._parser: AnswerParser | None = None
        if not grammar.is_plain:
            self.marks = grammar.marks
            end = engine.prompt_end(prompt_token_ids, grammar.marks)
            self._parser = AnswerParser(grammar, prompt=end, tools=tools)

    @property
    def thought_end(self) -> str:
        """What ends the thought that the prompt has begun; "" if it has begun none."""
        return "" if self._parser is None else self._parser.thought_end

    def feed(self, text: str) -> list[Said]:
        """What the engine's text says; what may still become a marker waits."""
        if self._parser is None:
            return [Part(text)] if text else []
        return self._said(self._parser.feed(text))

    def finish(self) -> list[Said]:
        """What was held back. The answer is over."""
        return [] if self._parser is None else self._said(self._parser.finish())

    def _said(self, events: Sequence[ParsedEvent]) -> list[Said]:
        return [part for part in _parts(events) if not (self._must_call and _is_text(part))]


def _is_text(part: Said) -> bool:
    return isinstance(part, Part) and not part.is_reasoning


def _parts(events: Sequence[ParsedEvent]) -> list[Said]:
    return [
        Part(event.delta, isinstance(event, ParsedReasoning))
        if isinstance(event, ParsedText | ParsedReasoning)
        else event
        for event in events
    ]
