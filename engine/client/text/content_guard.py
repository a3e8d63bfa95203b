"""Keeping what users typed apart from the control tokens of a chat template.

A tokenizer that meets the text `<|im_end|>` makes the control token of it, so a user could end
their own message and go on as the system. Against that, two halves:

* `ContentGuard` replaces such texts, in all that the template is given, by placeholders while it is
  rendered, so that the template's own markers can be distinguished from them afterwards;
* `Twin` is a copy of the tokenizer that knows the control tokens under secret aliases only. The
  markers of the rendered text are put into aliases, the placeholders back into what was typed, and
  the whole is encoded at once: boundaries, prefix spaces and merges are those of the original.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import tokenizers

from engine.client.templates.chat_template import Message
from engine.errors import ValidationError

# Supplementary private use areas: no script has letters there.
PLACEHOLDERS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class ControlTokens:
    """The texts that a tokenizer turns into control tokens, and how to find them.

    Every special token is one; other added tokens are when they look like `<|this|>` or when the
    template itself writes them (`<think>`, `<tool_call>`). Answers of the assistant may hold the
    latter, because templates look for them there.
    """

    def __init__(self, backend: tokenizers.Tokenizer, template: str) -> None:
        added = [token for token in backend.get_added_tokens_decoder().values() if token.content]
        special = [t for t in added if t.special or re.fullmatch(r"<\|.*\|>", t.content)]
        written = [t for t in added if t.content in template]
        self.texts = {token.content for token in chain(special, written)}
        self.pattern = _any_of(self.texts)
        self._special_pattern = _any_of(token.content for token in special)
        self._beginnings = {text[:n] for text in self.texts for n in range(1, len(text))}
        self._first_characters = {text[0] for text in self.texts}
        self._longest = max(map(len, self.texts), default=0)
        has_normalized = any(token.normalized for token in chain(special, written))
        self._normalizer = backend.normalizer if has_normalized else None

    def pattern_for(self, role: object) -> re.Pattern[str]:
        return self._special_pattern if role == "assistant" else self.pattern

    def may_be_in(self, text: str) -> bool:
        """A quick look, so that long texts without any `<` are not searched."""
        return any(first in text for first in self._first_characters)

    def may_continue(self, text: str) -> bool:
        """Whether what follows `text` could complete a control token that begins in it."""
        tail = text[-self._longest :]
        return any(tail[-n:] in self._beginnings for n in range(1, len(tail) + 1))

    def is_hidden_in(self, text: str) -> bool:
        """Whether the tokenizer's normalization makes a control token of other characters."""
        if self._normalizer is None:
            return False
        return self.pattern.search(self._normalizer.normalize_str(text)) is not None


class ContentGuard:
    """One conversation's placeholders. `is_needed` is False when nothing given was suspicious.

    `variables` are what else the template is given, such as the definitions of tools.
    """

    def __init__(
        self,
        control: ControlTokens,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.is_needed = False
        self._control = control
        self._originals: dict[str, str] = {}  # placeholder → what it stands for
        self._codes = chain(*PLACEHOLDERS)
        self._given = [messages, variables or {}]
        self.messages = [self._protect_message(message) for message in messages]
        self.variables = {
            name: self._protect(value, None) for name, value in (variables or {}).items()
        }

    def restore(self, text: str) -> str:
        """Put what was typed back in the place of the placeholders."""
        for placeholder, original in self._originals.items():
            text = text.replace(placeholder, original)
        return text

    def _protect_message(self, message: Message) -> Message:
        """The role is the caller's own. Calls of tools say what a user or a tool made them say."""
        role = message.get("role")
        guarded = {
            name: value if name == "role" else self._protect(value, _role_of(name, role))
            for name, value in message.items()
        }
        return {"content": None, **guarded}

    def _protect(self, content: Any, role: object) -> Any:
        if isinstance(content, str):
            return self._protect_text(content, self._control.pattern_for(role))
        if isinstance(content, Mapping):
            return {
                self._protect(key, role): self._protect(value, role)
                for key, value in content.items()
            }
        if isinstance(content, list | tuple):
            return [self._protect(part, role) for part in content]
        return content

    def _protect_text(self, text: str, pattern: re.Pattern[str]) -> str:
        self.is_needed = self.is_needed or self._control.is_hidden_in(text)
        if not self._control.may_be_in(text):
            return text
        protected = pattern.sub(lambda match: self._placeholder(match[0]), text)
        if self._control.may_continue(text):
            protected += self._placeholder("")
        return protected

    def _placeholder(self, original: str) -> str:
        self.is_needed = True
        for placeholder, known in self._originals.items():
            if known == original:
                return placeholder
        for placeholder in map(chr, self._codes):
            if not any(placeholder in text for text in _strings(self._given)):
                self._originals[placeholder] = original
                return placeholder
        raise ValidationError("the messages use up every private character", "messages")


class Twin:
    """A copy of a tokenizer in which no text a user can type is a control token."""

    def __init__(self, backend: tokenizers.Tokenizer, control: ControlTokens) -> None:
        nonce = secrets.token_hex(8)  # never leaves the process, so nobody can type an alias
        self._pattern = control.pattern
        self._aliases = {
            text: f"<|{nonce}:{number}|>" for number, text in enumerate(sorted(control.texts))
        }
        definition = json.loads(backend.to_str())
        self._rename(definition)
        self.backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
        for text, alias in self._aliases.items():
            if self.backend.token_to_id(alias) != backend.token_to_id(text):
                raise ValidationError(f"{text!r} cannot be kept apart from what users type")

    def mark(self, text: str) -> str:
        """Put the control tokens of a rendered template into the aliases this tokenizer knows."""
        return self._pattern.sub(lambda match: self._aliases[match[0]], text)

    def _rename(self, definition: dict[str, Any]) -> None:
        aliases = self._aliases
        for token in definition["added_tokens"]:
            token["content"] = aliases.get(token["content"], token["content"])
        model = definition["model"]
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            model["vocab"] = {aliases.get(text, text): i for text, i in vocabulary.items()}
        elif isinstance(vocabulary, list):  # Unigram: [text, score]
            model["vocab"] = [[aliases.get(text, text), score] for text, score in vocabulary]
        if model.get("unk_token") in aliases:
            model["unk_token"] = aliases[model["unk_token"]]
        if model.get("merges"):  # those that end in a control token would make one of plain text
            model["merges"] = [pair for pair in model["merges"] if not self._is_control(pair)]

    def _is_control(self, pair: str | list[str]) -> bool:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        return not self._aliases.keys().isdisjoint((left, right, left + right))


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _role_of(name: str, role: object) -> object:
    """Whose text a field of a message is."""
    return None if name == "tool_calls" else role


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
        for key in value:
            yield from _strings(key)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)
