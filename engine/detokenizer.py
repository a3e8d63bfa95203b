"""Token ids to text, a few at a time: no half characters, and nothing of a stop string.

Joined deltas are exactly what decoding everything at once would add to the prompt. Two things may
be held back for a while: the bytes of an unfinished character, and the longest end of the text that
a stop string begins with. `finish` gives out what is still held.
"""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
MAX_CHARACTER_TOKENS = 4  # a character has at most four bytes
TAIL_TOKENS = 6  # decoded as context: enough for every decoder's rules about spaces
SHIFT_TOKENS = 12  # a longer window is cut to its tail
MAX_HELD_REPLACEMENTS = 16  # more of them cannot become one character
MAX_GARBAGE_TOKENS = 256  # without a whole character: given out as they are


class Decoder(Protocol):
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


class IncrementalDecoder:
    """The text that ids add to a prompt.

    It decodes a window: some ids whose text is known to be whole, as context, and all after them.
    The window is cut to its tail when it gets long, so each step costs the same.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that were given out, or are the prompt's
        self._shift_to_tail_of(prompt_token_ids)

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text these ids complete. What ends in an unfinished character waits for the rest."""
        if not token_ids:
            return ""
        self._window += token_ids
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            delta = self._take(text)
            if len(self._window) > SHIFT_TOKENS:
                self._shift_to_tail_of(self._window)
            return delta
        if len(self._window) > MAX_GARBAGE_TOKENS:
            delta = self._take(text)
            self._window, self._shown = [], 0
            return delta
        return self._take(self._whole_part(text))

    def finish(self) -> str:
        """What is still held: an unfinished character becomes U+FFFD, as in a full decode."""
        return self._take(self._decode(self._window))

    def _take(self, text: str) -> str:
        delta = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return delta

    def _decode(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _whole_part(self, text: str) -> str:
        """Of the window's text, what no later byte can change.

        Most decoders write one U+FFFD for unfinished bytes. Byte fallback writes one for each
        byte of the whole run, finished characters included, so it is asked again without the end.
        """
        whole = text.rstrip(REPLACEMENT)
        for num_left_out in range(1, MAX_CHARACTER_TOKENS):
            shorter = self._decode(self._window[:-num_left_out])
            if not shorter.endswith(REPLACEMENT):
                return max(whole, shorter, key=len)
        if len(text) - len(whole) > MAX_HELD_REPLACEMENTS:
            return text[: -(MAX_CHARACTER_TOKENS - 1)]
        return whole

    def _shift_to_tail_of(self, token_ids: Sequence[int]) -> None:
        """Keep as context the last ids that make whole characters, with some text among them."""
        end = len(token_ids)
        for stop in range(end, max(end - MAX_CHARACTER_TOKENS, 0), -1):
            for start in range(max(stop - TAIL_TOKENS, 0), max(stop - 4 * TAIL_TOKENS, 0) - 1, -1):
                tail = list(token_ids[start:stop])
                text = self._decode(tail)
                if text and REPLACEMENT not in text:
                    self._window, self._shown = tail, len(text)
                    return
        self._window, self._shown = [], 0


class StopMatcher:
    """Looks for stop strings in a text that arrives in pieces; the one that completes first wins.

    Each stop string is matched as it arrives (Knuth, Morris and Pratt), so that at any moment it is
    known how much of the text's end could still become one.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self.stops = list(stops)
        self._include = include_in_output
        self._failures = [_failure_table(stop) for stop in self.stops]
        self._matched = [0] * len(self.stops)  # characters of each stop that the text ends with
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that ends it, if one does."""
        text = self._held + text
        for place in range(len(self._held), len(text)):
            stop = self._advance(text[place])
            if stop is not None:
                self._held = ""
                end = place + 1
                return text[: end if self._include else end - len(stop)], stop
        held = max(self._matched, default=0)
        safe = len(text) - held
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Give out what is held; nothing that was held can be part of a stop string later."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self.stops)
        return held

    def _advance(self, character: str) -> str | None:
        winner = None
        for number, stop in enumerate(self.stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = self._failures[number][matched - 1]
            matched += stop[matched] == character
            self._matched[number] = matched
            if matched == len(stop) and winner is None:
                winner = stop
        return winner


class Detokenizer:
    """`IncrementalDecoder` and `StopMatcher` for one request; it takes nothing after a stop."""

    def __init__(
        self,
        tokenizer: Decoder,
        prompt_token_ids: Sequence[int] = (),
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._decoder = IncrementalDecoder(
            tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens
        )
        self._matcher = StopMatcher(stops, include_in_output=include_stop) if stops else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self.stop: str | None = None  # the stop string that was found

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take up tokens whose text was shown already; what they held back is held again."""
        self._num_tokens += len(token_ids)
        self._decoder.feed(token_ids[: self._min_tokens])
        text = self._decoder.feed(token_ids[self._min_tokens :])
        if self._matcher is not None:
            self._match(text)

    def feed(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The new text, and how many of these ids it took: fewer when a stop string ended it."""
        if self._matcher is None:
            self._num_tokens += len(token_ids)
            return self._decoder.feed(token_ids), len(token_ids)
        text = ""
        for count, token_id in enumerate(token_ids, 1):
            self._num_tokens += 1
            text += self._match(self._decoder.feed([token_id]))
            if self.stop is not None:
                return text, count
        return text, len(token_ids)

    def finish(self) -> str:
        """What is held back, at the end of the request; it may still complete a stop string."""
        text = self._decoder.finish()
        if self._matcher is None:
            return text
        return self._match(text) + ("" if self.stop else self._matcher.flush())

    def _match(self, text: str) -> str:
        assert self._matcher is not None
        if self._num_tokens <= self._min_tokens:
            return text
        shown, self.stop = self._matcher.feed(text)
        return shown


def _failure_table(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper suffix that begins `stop`."""
    table = [0] * len(stop)
    matched = 0
    for place in range(1, len(stop)):
        while matched and stop[place] != stop[matched]:
            matched = table[matched - 1]
        matched += stop[place] == stop[matched]
        table[place] = matched
    return table
