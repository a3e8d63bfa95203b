"""Answers that keep to the form of a call: walked at random, and read by the parser."""

import json
import random
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import llguidance

from engine.client.holding.call_form import call_form
from engine.client.parsing.calls import Tools
from engine.client.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
)
from engine.client.parsing.grammar import Field, Format, Grammar
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.parser import AnswerParser
from engine.client.requests.request_state import new_detokenizer
from engine.client.text.tokenizer import Tokenizer
from engine.core.structured.compiling import LIMITS
from engine.sampling_params import SamplingParams
from tests.engine.helpers.small_tokenizers import build_marked

MAX_TOKENS = 600
MARKS = (  # of all formats
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("[THINK]", "[/THINK]", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "<|channel|>",
        "<|message|>",
    ),
    *("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"),
)
TEXT_ENDS = (  # what is drawn a character at a time does not end soon
    *("\n</parameter>", "</arg_value>", "</p>", "</think>", "[/THINK]", "<|end|>"),
    *("</tool_call>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|call|>"),
)


class Answer(NamedTuple):
    """What the parser makes of an answer."""

    calls: list[tuple[str, Any]]
    thoughts: str
    text: str
    are_valid: bool  # the calls
    tokens: list[int]


class Vocabulary:
    """A tokenizer that has these marks as tokens."""

    def __init__(self, folder: Path, marks: Sequence[str] = MARKS) -> None:
        build_marked(folder, marks)
        self.tokenizer = Tokenizer(folder)
        self.added = {text: token_id for token_id, text, _ in self.tokenizer.added_tokens}
        self.ends = [self.added["<|endoftext|>"], self.added["<|im_end|>"]]
        self.ends += [self.added[each] for each in ("<|call|>", "<|return|>") if each in self.added]
        definition = (folder / "tokenizer.json").read_text()
        self.compiler = llguidance.LLTokenizer(definition, eos_token=self.ends)
        closers = [self.tokenizer.encode(each, False)[0] for each in '"}]>']
        marks_that_end = (*("<|end|>", "<|call|>", "[/THINK]"), *self.added)
        self._closers = {*closers, *self.ends}
        spelled = [self.tokenizer.encode(each, False) for each in TEXT_ENDS]
        self._spelled = [each for each in spelled if each[0] not in self.ends]
        self._closers.update(
            self.added[each]
            for each in marks_that_end
            if each in self.added and (each.startswith("</") or each in marks_that_end[:3])
        )

    def grammar(self, format_: Format) -> Grammar:
        return Grammar(format_, starmap(AddedToken, self.tokenizer.added_tokens))

    def matcher(
        self, format_: Format, tools: Tools, name: str | None = None, thought: Field | None = None
    ) -> Any:
        grammar = self.grammar(format_)
        form = call_form(grammar, tools, name, thought=thought, end_token_ids=self.ends)
        text, limits = form.grammar or "", llguidance.LLParserLimits(**LIMITS)
        matcher = llguidance.LLMatcher(self.compiler, text, log_level=0, limits=limits)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def walk(self, matcher: Any, seed: int) -> list[int] | None:
        """The tokens of an answer, which ends soon; None if it does not."""
        rng, ids, at = random.Random(seed), list[int](), matcher.deep_copy()
        while len(ids) < MAX_TOKENS:
            allowed = [
                number * 8 + bit
                for number, byte in enumerate(at.compute_bitmask())
                for bit in range(8)
                if byte >> bit & 1
            ]
            assert allowed and not at.is_error(), at.get_error()
            closing = [each for each in allowed if each in self._closers]
            hurries = rng.random() < (0.2 if len(ids) < 40 else 0.8)
            ends = [each for each in self._spelled if at.validate_tokens(each) == len(each)]
            if hurries and ends:
                ids += (end := rng.choice(ends))
                at.consume_tokens(end)
                continue
            ids.append(rng.choice(closing if closing and hurries else allowed))
            if ids[-1] in self.ends:
                return ids
            at.consume_token(ids[-1])
        return None

    def read(self, format_: Format, ids: Sequence[int], tools: Tools) -> Answer:
        grammar = self.grammar(format_)
        shown = list(ids)
        if shown[-1] in self.ends and shown[-1] not in grammar.marks.characters:
            shown.pop()
        detokenizer = new_detokenizer(self.tokenizer, [], SamplingParams(), grammar.marks)
        parser = AnswerParser(grammar, tools=tools)
        events = [event for each in shown for event in parser.feed(detokenizer.feed([each])[0])]
        return _answer([*events, *parser.feed(detokenizer.finish()), *parser.finish()], list(ids))

    def read_text(self, format_: Format, text: str, tools: Tools) -> Answer:
        return self.read(format_, self.encode(text), tools)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, False)


def _answer(events: list[Event], tokens: list[int]) -> Answer:
    names = [each.name for each in events if isinstance(each, CallBegin)]
    arguments = ["" for _ in names]
    for each in events:
        if isinstance(each, CallArguments):
            arguments[each.index] += each.delta
    ends = [each.is_valid for each in events if isinstance(each, CallEnd)]
    are_valid = len(ends) == len(names) and all(ends)
    return Answer(
        list(zip(names, map(json.loads, arguments) if are_valid else arguments, strict=True)),
        "".join(each.delta for each in events if isinstance(each, ReasoningDelta)),
        "".join(each.delta for each in events if isinstance(each, TextDelta)),
        are_valid,
        tokens,
    )
