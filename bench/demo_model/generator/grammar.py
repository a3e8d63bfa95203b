"""A small template language: one string describes many sentences.

`[a|b]` picks one of the alternatives and may nest, `{A.he}` reads an attribute of a bound name
(a capital first letter, `{A.He}`, capitalises the value), and `<rule>` expands a line of another
rule. Rules live in the text files of `rules/`: `== name` opens a rule, each further line is one
alternative, and a literal `\\n` in a line breaks it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

RULES_FOLDER = Path(__file__).parent / "rules"

Node: TypeAlias = "str | Choice | Slot | Rule"
Bindings: TypeAlias = Mapping[str, object]


class Choice:
    """Alternatives in square brackets."""

    def __init__(self, options: Sequence[Sequence[Node]]) -> None:
        self.options = options


class Slot:
    """A value of the bindings, such as `A.he`."""

    def __init__(self, path: str) -> None:
        self.name, _, self.attribute = path.partition(".")


class Rule:
    """A reference to another rule; its name may hold slots, as in `<weather_{W}>`."""

    def __init__(self, name: Sequence[Node]) -> None:
        self.name = name


def _parse(text: str, at: int, closers: str) -> tuple[list[Node], int]:
    nodes: list[Node] = []
    plain: list[str] = []

    def flush() -> None:
        if plain:
            nodes.append("".join(plain))
            plain.clear()

    while at < len(text) and text[at] not in closers:
        char = text[at]
        if char == "[":
            flush()
            options = []
            while True:
                option, at = _parse(text, at + 1, "|]")
                options.append(option)
                if at >= len(text):
                    raise ValueError(f"unclosed [ in {text!r}")
                if text[at] == "]":
                    break
            nodes.append(Choice(options))
        elif char == "{":
            flush()
            end = text.index("}", at)
            nodes.append(Slot(text[at + 1 : end]))
            at = end
        elif char == "<":
            flush()
            name, at = _parse(text, at + 1, ">")
            nodes.append(Rule(name))
        else:
            plain.append(char)
        at += 1
    flush()
    return nodes, at


@cache
def parse(text: str) -> tuple[Node, ...]:
    """Parse a template once; a stray `]` or `>` is an error, not text."""
    nodes, at = _parse(text, 0, "]>")
    if at != len(text):
        raise ValueError(f"stray {text[at]!r} in {text!r}")
    return tuple(nodes)


def load_rules(folder: Path = RULES_FOLDER) -> dict[str, list[str]]:
    """Read every rule of the grammar files and check that each line parses."""
    rules: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        lines: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            line = line.strip()
            if line.startswith("== "):
                lines = rules.setdefault(line[3:], [])
            elif line and not line.startswith("#! "):
                parse(line)
                lines.append(line.replace("\\n", "\n"))
    return rules


_LOWER_START = re.compile(r'(^|[.!?] |[.!?]"? ?\n+|\." )("?)([a-z])')
_SPACES = re.compile(r" {2,}")


def tidy(text: str) -> str:
    """Capitalise the first letter of sentences and drop doubled spaces."""
    text = _SPACES.sub(" ", text.strip())
    return _LOWER_START.sub(lambda match: match[1] + match[2] + match[3].upper(), text)


class Grammar:
    """Expands rules with one random generator, so that a seed fixes every text."""

    def __init__(self, rules: Mapping[str, Sequence[str]], rng: random.Random) -> None:
        self.rules = rules
        self.rng = rng

    def rule(self, name: str, bindings: Bindings) -> str:
        """Expand one random line of a rule."""
        return self._expand(parse(self.rng.choice(self.rules[name])), bindings)

    def say(self, name: str, bindings: Bindings | None = None) -> str:
        """Expand a rule into tidy sentences."""
        return tidy(self.rule(name, bindings or {}))

    def fill(self, template: str, bindings: Bindings) -> str:
        """Expand a template that is not in a rule."""
        return self._expand(parse(template), bindings)

    def _expand(self, nodes: Sequence[Node], bindings: Bindings) -> str:
        parts = []
        for node in nodes:
            if isinstance(node, str):
                parts.append(node)
            elif isinstance(node, Choice):
                parts.append(self._expand(self.rng.choice(node.options), bindings))
            elif isinstance(node, Slot):
                parts.append(_read_slot(node, bindings))
            else:
                parts.append(self.rule(self._expand(node.name, bindings), bindings))
        return "".join(parts)


def _read_slot(slot: Slot, bindings: Bindings) -> str:
    value = bindings[slot.name]
    if not slot.attribute:
        return str(value)
    lower = slot.attribute[0].lower() + slot.attribute[1:]
    text = str(getattr(value, lower))
    return text if lower == slot.attribute else text[0].upper() + text[1:]
