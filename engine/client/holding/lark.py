"""`Lark`: a grammar as llguidance reads it, in which a format's marks are tokens.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from engine.client.parsing.marks import MARK, Marks
from engine.errors import ValidationError
from engine.grammar.schemas import tighten

ANY = "/(?s:.*)/"
# White space that belongs to nobody; few, so that it is not all of an answer.
SPACE = "/[ \\n\\r\\t]{1,4}/"
SPACES = "/[ \\n\\r\\t]{0,4}/"  # the same as a part of a lexeme
JSON_SPACE = "[ \\n\\r\\t]{1,32}"  # between its parts: some models find no end of it
_OF_SPACE = {"whitespace_flexible", "whitespace_pattern"}


class Lark:
    """Collects rules. What its methods return stands for something in other rules."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._lines: list[str] = []
        self._names: dict[str, str] = {}  # of bodies that have a rule

    @property
    def marks(self) -> list[int]:
        """All of them that are tokens."""
        return list(self._marks.characters)

    def text(self, text: str) -> str:
        """This text, in which marks that are tokens are these. Raises `ValidationError`."""
        parts, plain = [], ""
        for character in self._marks.mark(text):
            if MARK.fullmatch(character) is None:
                plain += character
                continue
            parts += [literal(plain)] if plain else []
            parts.append(f"<[{self.token(character)}]>")
            plain = ""
        parts += [literal(plain)] if plain else []
        return " ".join(parts)

    def token(self, text: str) -> int | None:
        """The token that a mark is; None for what is none, or more. Raises `ValidationError`."""
        token = self._marks.tokens.get(self._marks.mark(text))
        if token is None:
            return None
        is_apart = not token.is_shown or (token.text.startswith("<") and token.text.endswith(">"))
        if not is_apart:  # llguidance takes it for a text, which may stand in any other
            problem = f"the token {token.text!r} of this vocabulary is not kept apart from text"
            raise ValidationError(problem, "tool_choice", token.text)
        return token.token_id

    def rule(self, body: str) -> str:
        """What `body` says. Two rules that say the same are one."""
        if body not in self._names:
            self._names[body] = f"r{len(self._names)}"
            self._lines.append(f"{self._names[body]}: {body}")
        return self._names[body]

    def lexeme(self, body: str, *, is_lazy: bool = False) -> str:
        """One piece of text, which ends at the first place where it may if it `is_lazy`."""
        key = f"{is_lazy} {body}"
        if key not in self._names:
            number = len(self._names)
            self._names[key] = name = f"l{number}" if is_lazy else f"L{number}"
            self._lines.append(f"{name}[lazy]: {body}" if is_lazy else f"{name}: {body}")
        return self._names[key]

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that a schema describes, with no more white space than people write.

        Raises `ValidationError` for what would not be held.
        """
        own = schema.get("x-guidance", {})
        if isinstance(own, Mapping) and not own.keys() & _OF_SPACE:
            schema = {**schema, "x-guidance": {**own, "whitespace_pattern": JSON_SPACE}}
        try:
            held = tighten(schema)
        except ValueError as error:
            raise ValidationError(f"parameters of a tool: {error}", "tools", None) from error
        return self.rule(f"%json {json.dumps(held)}")

    def space(self) -> str:
        """White space, or none."""
        return f"{self.lexeme(SPACE)}?"

    def other_tokens(self, *token_ids: int) -> str:
        """Any tokens but these, of any text."""
        return f"<[^{','.join(map(str, sorted({*token_ids})))}]>*"

    def grammar(self, start: str) -> str:
        """All of it."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self._lines])


def literal(text: str) -> str:
    """This text alone."""
    return json.dumps(text)


def one_of(choices: Collection[str]) -> str:
    """Any of these."""
    return "(" + " | ".join(choices) + ")"
