"""`AnswerReader`: tells what a model thinks from what it answers, as the checkpoint writes both."""

from collections.abc import Sequence
from typing import NamedTuple

from server.engines.client import (
    AnswerParser,
    EngineClient,
    Marks,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
)


class Part(NamedTuple):
    """New text of an answer, or of the thoughts before it."""

    text: str
    is_reasoning: bool = False


class AnswerReader:
    """One answer of an engine, from its prompt on."""

    def __init__(self, engine: EngineClient, prompt_token_ids: Sequence[int]) -> None:
        grammar = engine.answer_grammar
        self.marks: Marks | None = None  # that the engine's text must have; None: none
        self._parser: AnswerParser | None = None
        if not grammar.is_plain:
            self.marks = grammar.marks
            end = engine.prompt_end(prompt_token_ids, grammar.marks)
            self._parser = AnswerParser(grammar, prompt=end)

    @property
    def thought_end(self) -> str:
        """What ends the thought that the prompt has begun; "" if it has begun none."""
        return "" if self._parser is None else self._parser.thought_end

    def feed(self, text: str) -> list[Part]:
        """What the engine's text says; what may still become a marker waits."""
        if self._parser is None:
            return [Part(text)] if text else []
        return _parts(self._parser.feed(text))

    def finish(self) -> list[Part]:
        """What was held back. The answer is over."""
        return [] if self._parser is None else _parts(self._parser.finish())


def _parts(events: Sequence[ParsedEvent]) -> list[Part]:
    return [
        Part(event.delta, isinstance(event, ParsedReasoning))
        for event in events
        if isinstance(event, ParsedText | ParsedReasoning)
    ]
