"""Seeded answers as models write them, in each format, with what they say."""

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.client.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
)
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.parser import AnswerParser

NAMES = ("get_weather", "search", "files.read", "x")
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "search": {"properties": {"days": {"type": ["integer", "null"]}, "deep": {"type": "array"}}},
    "files.read": {},
    "x": {"properties": {"flag": {"type": "boolean"}}},
}
# What a text may be made of: words, and beginnings of what is more than a text.
BITS = (
    *(
        "the",
        "mill ",
        "Clara",
        " ",
        "\n",
        "\n\n",
        "é",
        "東京",
        "😀",
        "<",
        "</",
        "<|",
        "[",
        "]",
        "{",
    ),
    *("}", '"', "\\", "\\n", "'", ",", ":", "`", "```", "```json", "<tool", "<tool_cal", "</thin"),
    *("[TOOL", "<|chan", "to=", "call", "0", "3.5", "true", "null", "<｜tool", "<arg_", "<param"),
)
# Nobody may take them for a control token: only where the vocabulary has such may a text have them.
SPELLED = (
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "</function>",
    ),
    *("<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<arg_key>", "</arg_value>", "[THINK]"),
    *(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "<|python_tag|>",
        "<|start|>",
    ),
)


@dataclass(slots=True)
class Said:
    """What events say, all together."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, bool | None]] = field(default_factory=list)

    def values(self) -> list[tuple[str, Any]]:
        """The calls with what their arguments are."""
        return [(name, json.loads(arguments)) for name, arguments, _ in self.calls]


def said(events: Sequence[Event]) -> Said:
    """Raises `AssertionError` if events contradict each other."""
    found = Said()
    is_open = False
    for event in events:
        match event:
            case TextDelta(delta):
                found.text += delta
            case ReasoningDelta(delta):
                found.reasoning += delta
            case CallBegin(index, _, name):
                assert index == len(found.calls) and not is_open
                found.calls.append((name, "", None))
                is_open = True
            case CallArguments(index, delta):
                assert index == len(found.calls) - 1 and is_open and delta
                name, arguments, _ = found.calls[index]
                found.calls[index] = (name, arguments + delta, None)
            case CallEnd(index, is_valid):
                assert index == len(found.calls) - 1 and is_open
                found.calls[index] = (*found.calls[index][:2], is_valid)
                is_open = False
    return found


def read(grammar: Grammar, pieces: Sequence[str], prompt: str = "") -> list[Event]:
    """The events of an answer that comes in these pieces."""
    parser = AnswerParser(grammar, tools=TOOLS, prompt=prompt)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def new_seed() -> int:
    """Printed, and repeated by `CUTS_SEED`."""
    seed = int(os.environ.get("CUTS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CUTS_SEED={seed}")
    return seed


def cut(rng: random.Random, text: str) -> list[str]:
    """Pieces of a text, as long as tokens are, with some long ones."""
    longest = rng.choice((1, 2, 4, 8, 40, 400))
    pieces = []
    while text:
        length = rng.randint(1, longest)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


class Writer:
    """Writes one answer in one format."""

    def __init__(self, rng: random.Random, grammar: Grammar, *, has_tokens: bool) -> None:
        self._rng = rng
        self._grammar = grammar
        self._has_tokens = has_tokens
        self.expected = Said()
        self.arguments: list[tuple[str, Any]] = []

    def write(self) -> str:
        """Marked text."""
        return _WRITERS[self._grammar.format.name](self)

    def _mark(self, marker: str) -> str:
        return self._grammar.marks.mark(marker)

    def _spoken(self) -> str:
        bits = BITS + SPELLED if self._has_tokens else BITS
        text = "".join(self._rng.choices(bits, k=self._rng.randint(1, 12)))
        if not self._has_tokens:  # bits may add up to a marker
            for each in (*SPELLED, "<function=", "<parameter=", "</parameter>", "<tool_call>"):
                text = text.replace(each, "")
        return text

    def _text(self) -> str:
        if self._rng.random() < 0.3:
            return ""
        text = self._spoken()
        self.expected.text += text
        return text

    def _think(self, begin: str = "<think>", end: str = "</think>") -> str:
        if self._rng.random() < 0.4:
            return ""
        text = self._spoken()
        self.expected.reasoning += text
        return self._mark(begin) + text + self._mark(end)

    def _calls(self, one: Callable[[str, dict[str, Any]], str], between: str = "") -> str:
        return between.join(one(*self._call()) for _ in range(self._rng.randint(0, 3)))

    def _call(self) -> tuple[str, dict[str, Any]]:
        name = self._rng.choice(NAMES)
        keys = self._rng.sample(("city", "days", "deep", "flag", "a b"), self._rng.randint(0, 3))
        arguments = {key: self._value(key) for key in keys}
        self.arguments.append((name, arguments))
        return name, arguments

    def _value(self, key: str) -> Any:
        if key in ("days", "flag", "deep"):
            return self._rng.choice((3, None, True, 2.5, [1, {"a": "}"}], {"b": ['"', "\\"]}))
        return "".join(self._rng.choices(BITS + SPELLED, k=self._rng.randint(0, 6)))

    def _json(self, value: Any) -> str:
        return json.dumps(
            value,
            ensure_ascii=self._rng.random() < 0.3,
            indent=self._rng.choice((None, None, 2)),
        )

    def hermes(self) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            parts = {"name": name, "arguments": arguments}
            if self._rng.random() < 0.2:
                parts = {"arguments": arguments, "name": name}
            space = self._rng.choice(("", "\n"))
            inside = space + self._json(parts) + space
            return self._mark("<tool_call>") + inside + self._mark("</tool_call>")

        return self._think() + self._text() + self._calls(one, "\n") + self._text()

    def llama(self) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            return self._json({"name": name, "parameters": arguments})

        if self._rng.random() < 0.2:
            return self._text()
        begin = self._rng.choice(("", "\n", self._mark("<|python_tag|>")))
        calls = self._calls(one, self._rng.choice(("; ", "\n", ";")))
        return begin + calls if calls else ""

    def mistral_list(self) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            return self._json({"name": name, "arguments": arguments})

        calls = self._calls(one, ", ")
        space = self._rng.choice(("", " "))
        before = self._think("[THINK]", "[/THINK]") + self._text()
        return before + (self._mark("[TOOL_CALLS]") + f"{space}[{calls}]" if calls else "")

    def mistral(self) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            parts = ("[CALL_ID]", "c1", "[ARGS]") if self._rng.random() < 0.3 else ("[ARGS]",)
            marked = "".join(map(self._mark, parts))
            return self._mark("[TOOL_CALLS]") + name + marked + self._json(arguments)

        return self._think("[THINK]", "[/THINK]") + self._text() + self._calls(one)

    def deepseek(self) -> str:
        return self._deepseek("{}<｜tool▁sep｜>{}")

    def deepseek_fenced(self) -> str:
        return self._deepseek("function<｜tool▁sep｜>{}\n```json\n{}\n```")

    def _deepseek(self, written: str) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            before, between, after = written.split("{}")
            inside = self._mark(before) + name + self._mark(between) + self._json(arguments) + after
            return self._mark("<｜tool▁call▁begin｜>") + inside + self._mark("<｜tool▁call▁end｜>")

        calls = self._calls(one, "\n")
        if calls:
            begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
            calls = self._mark(begin) + calls + self._mark(end)
        return self._think() + self._text() + calls

    def qwen_xml(self) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            pairs = "".join(
                f"<parameter={key}>\n{self._plain_value(name, key, value)}\n</parameter>\n"
                for key, value in arguments.items()
            )
            begin, end = self._mark("<tool_call>"), self._mark("</tool_call>")
            return f"{begin}\n<function={name}>\n{pairs}</function>\n{end}"

        return self._think() + self._text() + self._calls(one, "\n")

    def glm(self) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            pairs = "".join(
                self._mark("<arg_key>")
                + key
                + self._mark("</arg_key>")
                + "\n"
                + self._mark("<arg_value>")
                + self._plain_value(name, key, value)
                + self._mark("</arg_value>")
                + "\n"
                for key, value in arguments.items()
            )
            return self._mark("<tool_call>") + f"{name}\n{pairs}" + self._mark("</tool_call>")

        return self._think() + self._text() + self._calls(one, "\n")

    def _plain_value(self, name: str, key: str, value: Any) -> str:
        """As templates write it; what it is said to be then, by the tool's schema."""
        written = value if isinstance(value, str) else json.dumps(value)
        for each in ("</parameter>", "</arg_value>"):
            written = written.replace(each, "")
        types = TOOLS[name].get("properties", {}).get(key, {}).get("type", "string")
        kinds: dict[str, tuple[type, ...]] = {
            "integer": (int,),
            "null": (type(None),),
            "boolean": (bool,),
            "array": (list,),
        }
        is_kind = any(
            isinstance(value, kinds.get(each, ())) and (each == "boolean") >= (value is True)
            for each in ([types] if isinstance(types, str) else types)
        )
        self.arguments[-1][1][key] = value if is_kind else written
        return written

    def harmony(self) -> str:
        mark = self._mark
        parts = []
        if self._rng.random() < 0.6:
            text = self._spoken()
            self.expected.reasoning += text
            parts.append(mark("<|channel|>analysis<|message|>") + text + mark("<|end|>"))
        if self._rng.random() < 0.6:
            text = self._spoken()
            self.expected.text += text
            channel = self._rng.choice(("final", "commentary"))
            parts.append(mark(f"<|channel|>{channel}<|message|>") + text + mark("<|end|>"))
        for _ in range(self._rng.randint(0, 2)):
            name, arguments = self._call()
            head = self._rng.choice(
                (
                    f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                    f" to=functions.{name}<|channel|>commentary json<|message|>",
                )
            )
            parts.append(mark(head) + self._json(arguments) + mark("<|call|>"))
        return mark("<|start|>assistant").join(parts)


_WRITERS: dict[str, Callable[[Writer], str]] = {
    name: getattr(Writer, name)
    for name in (
        *("hermes", "llama", "mistral_list", "mistral", "deepseek", "deepseek_fenced"),
        *("qwen_xml", "glm", "harmony"),
    )
}
WRITTEN = tuple(_WRITERS)


def tokens_of(markers: Sequence[str], *, are_shown: bool) -> list[AddedToken]:
    """A token for each of these texts."""
    return [AddedToken(100 + n, each, are_shown) for n, each in enumerate(markers)]
