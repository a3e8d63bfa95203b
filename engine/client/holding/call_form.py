"""`call_form`: the grammar of an answer that must call a tool, as its model writes calls.

Such an answer is a thought, if the format has some, and then a call with arguments that the tool's
schema describes; where the format has several calls in a row, and no tool is named, one or more of
them. What cannot be held is refused by name: of formats as `tool_choice`, of schemas as `tools`.
Whether a schema can be compiled only the core knows, as of any grammar.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from engine.client.holding.lark import ANY, Lark, literal, one_of
from engine.client.holding.pair_form import PairForm
from engine.client.holding.schemas import object_schema
from engine.client.holding.spelling import Spelling, spelling_of
from engine.client.parsing.calls import NAME, BodySyntax, NamedCalls, Tools
from engine.client.parsing.grammar import Field, Grammar
from engine.client.parsing.json_calls import JsonArguments, JsonCalls
from engine.client.parsing.pair_calls import PairCalls
from engine.errors import ValidationError
from engine.grammar.params import MAX_GRAMMAR_BYTES, StructuredOutputsParams

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
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        problem = f"the parameters of the tools make a grammar of {len(text.encode())} bytes"
        raise ValidationError(f"{problem}, of at most {MAX_GRAMMAR_BYTES}", "tools", None)
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
        self._field = self._held_field()  # None: calls stand alone
        self._spelling = Spelling("", "", has_parallel=False)
        if self._field is not None:
            self._spelling = spelling_of(self._field, self._format)
        self._is_single = name is not None or not self._spelling.has_parallel

    def grammar(self, thought: Field | None) -> str:
        lark, between = self._lark, self._spelling.between
        calls = self._calls()
        gap = lark.text(between) if between else lark.space()
        if thought is not None:
            thoughts = f"{self._thought(thought)} {gap}"
        else:
            each = [self._whole_thought(field) for field in self._format.fields]
            known = [one for one in each if one]
            thoughts = lark.rule(f"{one_of(known)} {gap}") + "?" if known else ""
        if not between:
            thoughts = thoughts or gap
        return lark.grammar(f"{thoughts} {calls}".strip())

    # ---- thoughts

    def _whole_thought(self, field: Field) -> str:
        """With its beginning; "" for what is none, or of which nobody knows how it is begun."""
        if field.role != "reasoning":
            return ""
        begin, end, *_ = spelling_of(field, self._format)
        is_known = begin and end and (_is_text(field) or self._lark.token(end) is not None)
        return f"{self._lark.text(begin or '')} {self._thought(field)}" if is_known else ""

    def _thought(self, field: Field) -> str:
        """Any text, and its end."""
        lark, end = self._lark, spelling_of(field, self._format).end
        token = lark.token(end) if end else None
        if not end or (token is None and not _is_text(field)):
            self._refuse("ends thoughts as no text says")
        others = [each for each in (() if field.ends is None else field.ends.texts) if each != end]
        if token is None:
            text = f"{ANY} {literal(end)}"
            if others:
                text = f"({text}) & ~({ANY} {one_of(list(map(literal, others)))} {ANY})"
            return lark.lexeme(text, is_lazy=True)
        ends = [each for each in map(lark.token, others) if each is not None]
        if not _is_text(field):  # what else its pattern finds
            ends += lark.marks
        return f"{lark.other_tokens(token, *ends, *self._end_token_ids)} <[{token}]>"

    # ---- calls

    def _calls(self) -> str:
        before, after = map(self._lark.text, self._spelling.around)
        syntax = self._format.bare if self._field is None else self._field.body
        assert syntax is not None
        calls = self._lark.rule(self._region(syntax))
        if not (self._is_single or (isinstance(syntax, JsonCalls) and syntax.in_list)):
            calls = f"{calls} ({self._lark.space()} {calls})*"
        return " ".join(each for each in (before, calls, after) if each)

    def _held_field(self) -> Field | None:
        """That of calls between marks."""
        if self._format.bare is not None:
            return None
        fields = [field for field in self._format.fields if field.role == "call"]
        held = [field for field in fields if isinstance(field.body, HELD)]
        if not held:
            self._refuse("writes calls in a way that is not held" if fields else "has no calls")
        return held[0]

    def _region(self, syntax: BodySyntax) -> str:
        """A call of any of the tools, or a list of such."""
        spelled = self._spelling
        if spelled.begin is None:
            self._refuse("begins calls as no text says")
        by_begin: dict[str, list[str]] = {}  # what differs after the same beginning
        for name, schema in self._tools.items():
            begin = spelled.begin.replace("{name}", name)
            by_begin.setdefault(begin, []).append(self._body(syntax, name, schema))
        lark, regions = self._lark, []
        for begin, bodies in by_begin.items():
            body = lark.rule(one_of(bodies))
            if isinstance(syntax, JsonCalls) and syntax.in_list:
                more = "" if self._is_single else f' ("," {lark.space()} {body})*'
                body = f'"[" {body}{more} "]"'
            regions.append(" ".join(each for each in (lark.text(begin), body) if each))
        return f"{one_of(regions)} {self._end(spelled)}".strip()

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

    def _end(self, spelling: Spelling) -> str:
        """How a call ends. An end of the answer is no part of it."""
        end = spelling.end
        if end is None:
            self._refuse("ends calls as no text says")
        token = self._lark.token(end)
        if not end or (token is not None and token in self._end_token_ids):
            return ""
        return self._lark.text(end)

    def _refuse(self, problem: str) -> NoReturn:
        message = f"the model's format, {self._format.name}, {problem}"
        raise ValidationError(message, "tool_choice", self._format.name)


def _is_text(field: Field) -> bool:
    """Whether texts alone end it."""
    return field.ends is not None and field.ends.pattern is None
