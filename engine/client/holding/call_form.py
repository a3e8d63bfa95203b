"""`call_form`: the grammar of an answer that must call a tool, as its model writes calls.

Such an answer is a thought, if the format has some, and then a call with arguments that the tool's
schema describes; where the format has several calls in a row, and no tool is named, one or more of
them. What cannot be held is refused by name: of formats as `tool_choice`, of schemas as `tools`.
Whether a schema can be compiled only the core knows, as of any grammar.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import regex

from engine.client.holding.fields import begin_of, end_of
from engine.client.holding.lark import ANY, Lark, literal, one_of
from engine.client.holding.pair_form import PairForm
from engine.client.holding.schemas import object_schema
from engine.client.parsing.calls import NAME, BodySyntax, NamedCalls, Tools
from engine.client.parsing.grammar import Field, Grammar
from engine.client.parsing.json_calls import JsonArguments, JsonCalls
from engine.client.parsing.pair_calls import PairCalls
from engine.errors import ValidationError
from engine.grammar.params import StructuredOutputsParams

_TEXT = r"((?:[^()\[\]{}?*+|\\]|\\[^\w\s])*)"  # of a pattern: plain characters, quoted or not
_NAMED = re.compile(_TEXT + r"\(\?P<name>[^()]*\)" + _TEXT)
HELD = (JsonCalls, JsonArguments, NamedCalls, PairCalls)


def call_form(
    grammar: Grammar,
    tools: Tools,
    name: str | None = None,
    *,
    thought: Field | None = None,
    end_token_ids: Collection[int] = (),
) -> StructuredOutputsParams:
    """Of an answer that calls the tool `name`, or one or more of all `tools`.

    `thought` is one that the prompt has begun, and `end_token_ids` end an answer. Raises
    `ValidationError`.
    """
    try:
        text = _CallForm(grammar, tools, name, frozenset(end_token_ids)).grammar(thought)
    except RecursionError:
        raise ValidationError("the parameters of a tool are nested too deep", "tools") from None
    return StructuredOutputsParams(grammar=text)


class _CallForm:
    def __init__(
        self, grammar: Grammar, tools: Tools, name: str | None, end_token_ids: frozenset[int]
    ) -> None:
        self._format = grammar.format
        self._lark = Lark(grammar.marks)
        self._end_token_ids = end_token_ids
        if name is not None and name not in tools:
            raise ValidationError(f"there is no tool {name!r}", "tool_choice", name)
        if not tools:
            raise ValidationError("there are no tools", "tools", None)
        for each in tools:
            if NAME.fullmatch(each) is None:
                raise ValidationError("no model could call this tool", "tools", each)
        self._tools = dict(tools) if name is None else {name: tools[name]}
        self._is_single = name is not None or not self._format.has_parallel

    def grammar(self, thought: Field | None) -> str:
        lark = self._lark
        calls = self._calls()
        gap = lark.text(self._format.between) if self._format.between else lark.space()
        if thought is not None:
            thoughts = f"{self._thought(thought)} {gap}"
        else:
            each = [self._whole_thought(field) for field in self._format.fields]
            known = [one for one in each if one]
            thoughts = lark.rule(f"{one_of(known)} {gap}") + "?" if known else ""
        if not self._format.between:
            thoughts = thoughts or gap
        return lark.grammar(f"{thoughts} {calls}".strip())

    # ---- thoughts

    def _whole_thought(self, field: Field) -> str:
        """With its beginning; "" for what is none, or of which nobody knows how it is begun."""
        if field.role != "reasoning" or end_of(field) is None:
            return ""
        begin = begin_of(field)
        return "" if begin is None else f"{self._lark.text(begin)} {self._thought(field)}"

    def _thought(self, field: Field) -> str:
        """Any text, and its end."""
        lark, end = self._lark, end_of(field)
        if end is None:
            self._refuse("ends thoughts as no text says")
        token = lark.token(end)
        others = [each for each in (() if field.ends is None else field.ends.texts) if each != end]
        if token is None:
            text = f"{ANY} {literal(end)}"
            if others:
                text = f"({text}) & ~({ANY} {one_of(list(map(literal, others)))} {ANY})"
            return lark.lexeme(text, is_lazy=True)
        ends = [each for each in map(lark.token, others) if each is not None]
        return f"{lark.other_tokens(token, *ends, *self._end_token_ids)} <[{token}]>"

    # ---- calls

    def _calls(self) -> str:
        format_ = self._format
        before, after = map(self._lark.text, format_.around)
        if format_.bare is not None:
            calls = self._bodies(format_.bare, None)
        else:
            fields = [field for field in format_.fields if field.role == "call"]
            held = [field for field in fields if isinstance(field.body, HELD)]
            if not held:
                self._refuse("writes calls in a way that is not held" if fields else "has no calls")
            calls = self._regions(held[0])
        return " ".join(each for each in (before, calls, after) if each)

    def _regions(self, field: Field) -> str:
        """The calls of a field, each between its marks."""
        assert field.body is not None
        region = self._lark.rule(self._bodies(field.body, field))
        is_list = isinstance(field.body, JsonCalls) and field.body.in_list
        return (
            region if self._is_single or is_list else f"{region} ({self._lark.space()} {region})*"
        )

    def _bodies(self, syntax: BodySyntax, field: Field | None) -> str:
        """One region: a call of any of the tools, or a list of such."""
        by_begin: dict[str, list[str]] = {}  # what differs after the same beginning
        for name, schema in self._tools.items():
            begin = "" if field is None else self._begin(field, name)
            by_begin.setdefault(begin, []).append(self._body(syntax, name, schema))
        lark, regions = self._lark, []
        for begin, bodies in by_begin.items():
            body = lark.rule(one_of(bodies))
            if isinstance(syntax, JsonCalls) and syntax.in_list:
                more = "" if self._is_single else f' ("," {lark.space()} {body})*'
                body = f'"[" {body}{more} "]"'
            regions.append(" ".join(each for each in (lark.text(begin), body) if each))
        end = "" if field is None else self._end(field)
        return f"{one_of(regions)} {end}".strip()

    def _body(self, syntax: BodySyntax, name: str, schema: Mapping[str, Any]) -> str:
        """What stands between the marks of a call of one tool."""
        lark = self._lark
        match syntax:
            case PairCalls():
                return PairForm(lark, syntax, name).body(schema)
            case JsonArguments():
                return lark.json(object_schema(name, schema))
            case NamedCalls():
                begin = f"{syntax.before}{syntax.after}{name}{syntax.name_ends[0]}"
                before, after = syntax.around
                arguments = lark.json(object_schema(name, schema))
                parts = [lark.text(begin + before), arguments, lark.text(after)]
            case JsonCalls():
                quoted = f'{{"{syntax.name_keys[0]}": "{name}", "{syntax.arguments_keys[0]}": '
                parts = [literal(quoted), lark.json(object_schema(name, schema)), '"}"']
                if not (syntax.is_bare or syntax.in_list):
                    parts = [lark.space(), *parts, lark.space()]
            case _:
                raise AssertionError(syntax)
        return lark.rule(" ".join(part for part in parts if part))

    def _begin(self, field: Field, name: str) -> str:
        """How a call begins; with its name if the beginning has it."""
        begin = begin_of(field)
        if begin is not None:
            return begin if field.written is None else begin.replace("{name}", name)
        pattern = "" if field.begins is None else field.begins.pattern or ""
        found = _NAMED.fullmatch(pattern)
        begin = "" if found is None else f"{_unquoted(found[1])}{name}{_unquoted(found[2])}"
        if found is None or regex.fullmatch(pattern, begin, regex.DOTALL) is None:
            self._refuse("begins calls as no text says")
        return begin

    def _end(self, field: Field) -> str:
        """How a call ends. An end of the answer is no part of it."""
        if field.ends is None:
            return ""
        end = end_of(field)
        if end is None:
            self._refuse("ends calls as no text says")
        token = self._lark.token(end)
        if token is not None and token in self._end_token_ids:
            return ""
        return self._lark.text(end)

    def _refuse(self, problem: str) -> NoReturn:
        message = f"the model's format, {self._format.name}, {problem}"
        raise ValidationError(message, "tool_choice", self._format.name)


def _unquoted(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern)
