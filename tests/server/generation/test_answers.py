"""`AnswerReader`: thoughts and text of an answer, from its prompt on."""

from collections.abc import Sequence

from engine.client.parsing.formats import grammar_of
from engine.client.parsing.marks import Marks
from server.engines.client import EngineTokenizer
from server.generation.answers import AnswerReader, Part
from tests.server.helpers.engines import IdleEngine


class ThinkingEngine(IdleEngine):
    """Its model thinks, and its prompts end in this."""

    def __init__(self, end: str, tokenizer: EngineTokenizer | None = None) -> None:
        super().__init__(1000, tokenizer)
        self.grammar = grammar_of("'</think>'")
        self._end = end

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        return self._end


def test_all_is_text_where_a_model_thinks_nothing() -> None:
    reader = AnswerReader(IdleEngine(), [1])
    assert reader.marks is None
    assert reader.feed(" <think> ") == [Part(" <think> ")]
    assert reader.feed("") == reader.finish() == []


def test_thoughts_are_separated_from_text() -> None:
    reader = AnswerReader(ThinkingEngine("assistant\n"), [1])
    assert reader.marks is not None
    assert reader.feed("<think>\nHm.\n</think>\n\nYes") == [Part("Hm.", True), Part("Yes")]
    assert reader.feed("! <") == [Part("!")]
    assert reader.finish() == [Part(" <")]


def test_a_prompt_may_begin_a_thought() -> None:
    reader = AnswerReader(ThinkingEngine("assistant\n<think>\n"), [1])
    assert reader.thought_end == "</think>"
    assert reader.feed("Hm.</think>Yes") == [Part("Hm.", True), Part("Yes")]
    assert AnswerReader(ThinkingEngine("assistant\n"), [1]).thought_end == ""
