"""From what a request asks for to llguidance's matcher. Not in the core's own process."""

import json
import re
from typing import Any

import llguidance
from llguidance import LLMatcher, StructTag

from engine.core.structured.frames import Source
from engine.errors import one_line
from engine.grammar.schemas import problems_of, tighten

_EXCERPT = re.compile(r"^ *(?:\d+ \|.*|\^ *)\n?", re.M)

# Work of one mask is bounded by llguidance's own defaults: 14 ms in its lexer, 3 ms in its parser.
LIMITS: dict[str, Any] = {
    "max_lexer_states": 50_000,  # of 1 to 2 KB
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # those tell the parser's state, and the text so far
}


def compile_source(source: Source, tokenizer: llguidance.LLTokenizer) -> LLMatcher:
    """Raises ValueError with one line that says what is wrong with it."""
    try:
        text = _grammar(source)
    except (ValueError, RecursionError, AssertionError) as error:
        raise ValueError(describe(str(error) or type(error).__name__)) from None
    limits = llguidance.LLParserLimits(**LIMITS)
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(describe(matcher.get_error()))
    return matcher


def warnings_of(source: Source, matcher: LLMatcher) -> list[str]:
    """What is not held of a lenient schema."""
    own = problems_of(json.loads(source.text)) if source.kind == "json" else ()
    return [describe(warning) for warning in (*matcher.get_grammar_warnings(), *own)]


def describe(error: str) -> str:
    """What llguidance says, without its own state, and without the lines around the place."""
    said = error.partition("<non-verbose/>")[0].partition("<state>")[0]
    return one_line(_EXCERPT.sub("", said))


def _grammar(source: Source) -> str:
    match source.kind:
        case "json":
            schema = json.dumps(tighten(json.loads(source.text)), ensure_ascii=False)
            return LLMatcher.grammar_from_json_schema(schema)
        case "tags":
            return _of_tags(json.loads(source.text))
        case "grammar":
            return llguidance.grammar_from("grammar", source.text)
        case "regex":
            return llguidance.grammar_from("regex", source.text)
        case "choice":
            return llguidance.grammar_from("choice", source.text)
        case _:
            raise ValueError(f"there is no kind {source.kind!r}")


def _of_tags(asked: Any) -> str:
    """Text in which each `trigger` begins a tag: its `begin`, what its `schema` allows, `end`."""
    if not isinstance(asked, dict) or "structures" not in asked:
        raise ValueError("structural_tag must have structures and triggers")
    triggers, tags = asked.get("triggers"), []
    if not isinstance(triggers, list) or not isinstance(asked["structures"], list):
        raise ValueError("structures and triggers must be lists")
    for structure in asked["structures"]:
        if not isinstance(structure, dict):
            raise ValueError("a structure must be an object")
        begin, end = structure.get("begin"), structure.get("end", "")
        if not isinstance(begin, str) or not isinstance(end, str):
            raise ValueError("begin and end of a structure must be strings")
        named = [it for it in triggers if isinstance(it, str) and it and begin.startswith(it)]
        if not named:
            raise ValueError(f"no trigger begins {begin!r}")
        schema = structure.get("schema", {})
        if not isinstance(schema, dict):
            raise ValueError("the schema of a structure must be an object")
        grammar = tighten(schema)
        tags.append(StructTag(trigger=named[0], begin=begin, grammar=grammar, end=end))
    if not tags:
        raise ValueError("there are no structures")
    return StructTag.to_grammar(tags, assume_special=False)
