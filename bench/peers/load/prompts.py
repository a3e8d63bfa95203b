"""Prompts of an exact number of tokens, no two of them alike, as ids and as a chat's message."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from engine.client.text.tokenizer import Tokenizer

WORD = re.compile("[Ġ▁][a-z]{2,9}")
MAX_WORDS = 4000  # to draw from
MAX_PROMPTS = 10_000  # of one seed


@dataclass(frozen=True, slots=True)
class Prompt:
    """The same number of tokens in both forms; the words differ."""

    token_ids: list[int]
    message: str  # of a user: with the chat template around it, it has as many tokens


class Prompts:
    """Draws words that are one token each. No prompt begins like one before it.

    That keeps prefix caches out of it: they may help where a conversation really repeats itself.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._tokenizer = Tokenizer(folder)
        self._random = random.Random(seed)
        candidates = sorted(name for name in self._tokenizer.get_vocab() if WORD.fullmatch(name))
        self._random.shuffle(candidates)
        self._ids: list[int] = []
        self._words: list[str] = []
        for name in candidates[: 4 * MAX_WORDS]:
            ids = self._tokenizer.encode(f" {name[1:]}", add_special_tokens=False)
            if len(ids) == 1 and len(self._words) < MAX_WORDS:
                self._ids += ids
                self._words.append(name[1:])
        if not self._words:
            raise ValueError(f"{folder} has no tokens that are words")
        pairs = range(len(self._words) ** 2)
        self._beginnings = iter(self._random.sample(pairs, min(len(pairs), MAX_PROMPTS)))
        self._frame = len(self.templated(self.text(1))) - 1

    def draw(self, num_tokens: int) -> Prompt:
        """Raises ValueError if the chat template alone is longer."""
        if num_tokens <= self._frame:
            raise ValueError(f"the chat template alone has {self._frame} tokens")
        ids = [self._ids[number] for number in self._draw(num_tokens)]
        return Prompt(ids, self.text(num_tokens - self._frame))

    def text(self, num_tokens: int) -> str:
        """Words, each after a space, so many tokens long."""
        return "".join(f" {self._words[number]}" for number in self._draw(num_tokens))

    def templated(self, message: str) -> list[int]:
        """The ids that an engine gets when a user says this."""
        return self._tokenizer.chat_token_ids([{"role": "user", "content": message}])

    def _draw(self, num_tokens: int) -> list[int]:
        """Numbers of words; the first two belong to no other prompt, if there are two."""
        count = len(self._words)
        unique = divmod(next(self._beginnings), count)
        rest = self._random.choices(range(count), k=max(0, num_tokens - 2))
        return [*unique, *rest][:num_tokens]
