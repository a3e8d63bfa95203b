"""Token ids to text, a few at a time: no half characters, and nothing of a stop string.

Joined deltas are what decoding everything at once would add to the prompt, however the ids were cut
into pieces. Two things may be held back for a while: the bytes of an unfinished character, and the
longest end of the text that a stop string begins with. `finish` gives out what is still held.

One thing a full decode does cannot be done in pieces: where a run of byte tokens (`<0xE2>`) is not
UTF-8, it replaces the whole characters in that run as well. Those were shown, and stay.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from engine.client.text.byte_decoder import REPLACEMENT, ByteDecoder
from engine.client.text.stop_strings import StopMatcher

TAIL_TOKENS = 6  # kept as context: enough for a character and for every decoder's rules on spaces
SHIFT_TOKENS = 12  # a longer window is cut to its tail
MAX_PIECES = 4  # tokens that one character may lie in, but for the last: UTF-8 has no longer ones
MAX_WINDOW_TOKENS = 256  # cut in any case
MAX_PROMPT_TOKENS = 96  # where a prompt's last text is looked for


class Decoder(Protocol):
    """What turns ids into text. Four attributes are optional, as `Tokenizer` has them:

    special_ids: the ids that `skip_special_tokens` leaves out
    byte_values: id → byte of the byte tokens, if the vocabulary has such
    token_bytes, visible_bytes: id → its bytes, with and without special tokens, if decoding only
        joins them
    """

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


class IncrementalDecoder:
    """The text that ids add to a prompt.

    It decodes a window: some ids whose text was given out, as context, and what came after them.
    The window is cut to its tail when it gets long, so each step costs the same. Byte tokens are
    only context there: their characters are put together here.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._options = {"skip_special_tokens": skip_special_tokens}
        if not skip_special_tokens and not spaces_between_special_tokens:
            self._options["spaces_between_special_tokens"] = False
        no_ids: frozenset[int] = frozenset()
        self._hidden = getattr(tokenizer, "special_ids", no_ids) if skip_special_tokens else no_ids
        self._byte_values: Mapping[int, int] = getattr(tokenizer, "byte_values", {})
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that were given out, or are the prompt's
        self._bytes = b""  # of byte tokens: an unfinished character
        # A prompt may end inside a character. The answer may finish it, but is not to blame.
        self._num_prompt_bytes = 0  # of `_bytes`
        self._prompt_is_unfinished = False
        self._read_prompt(prompt_token_ids)

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text these ids complete. What ends in an unfinished character waits for the rest."""
        text = ""
        visible = [i for i in token_ids if i not in self._hidden] if self._hidden else token_ids
        for are_bytes, run in groupby(visible, self._byte_values.__contains__):
            feed = self._feed_bytes if are_bytes else self._feed_tokens
            text += feed(list(run))
        return text

    def finish(self) -> str:
        """What is still held: an unfinished character becomes U+FFFD, as in a full decode."""
        return self._take_characters(is_end=True) + self._take(self._decode(self._window))

    def break_off(self) -> str:
        """The same where more follows, which does not complete it."""
        text = self.finish()
        if text:
            self._window, self._shown = [], 0
        return text

    def _feed_tokens(self, token_ids: list[int]) -> str:
        before = self._take_characters(is_end=True)
        self._window += token_ids
        text = self._decode(self._window)
        whole = self._whole_part(text)
        delta = self._take(whole)
        if len(self._window) > SHIFT_TOKENS:
            self._shift(text)
        return before + delta

    def _feed_bytes(self, token_ids: list[int]) -> str:
        self._window = [*self._window, *token_ids][-TAIL_TOKENS:]
        self._shown = len(self._decode(self._window))
        self._bytes += bytes(self._byte_values[token_id] for token_id in token_ids)
        return self._take_characters()

    def _take_characters(self, *, is_end: bool = False) -> str:
        """Take the whole characters out of `_bytes`, at the end of a run of byte tokens all."""
        text = ""
        while self._bytes:
            try:
                whole, num_broken = self._bytes.decode(), 0
                num_read = len(self._bytes)
            except UnicodeDecodeError as error:
                whole, num_broken = self._bytes[: error.start].decode(), error.end - error.start
                num_read = error.end
                if error.reason == "unexpected end of data" and not is_end:
                    self._bytes = self._bytes[error.start :]
                    if whole:
                        self._num_prompt_bytes = 0
                    return text + whole
            if not whole:
                num_broken = max(0, num_broken - self._num_prompt_bytes)
            text += whole + REPLACEMENT * num_broken
            self._bytes = self._bytes[num_read:]
            self._num_prompt_bytes = 0
        return text

    def _whole_part(self, text: str) -> str:
        """Of the window's text, what no later token can change.

        A byte-level decoder writes one U+FFFD for the bytes of an unfinished character. One that
        the model wrote looks the same, and waits for the next token.
        """
        if self._byte_values or not text.endswith(REPLACEMENT):
            return text
        return text[:-1]

    def _take(self, text: str) -> str:
        if self._prompt_is_unfinished and len(text) > self._shown:
            self._prompt_is_unfinished = False
            self._shown += text[self._shown] == REPLACEMENT
        delta = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return delta

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, **self._options) if token_ids else ""

    def _shift(self, text: str) -> None:
        """Cut the window to its tail, unless that hides what the text ends with."""
        tail = self._window[-TAIL_TOKENS:]
        tail_text = self._decode(tail)
        is_same = tail_text and tail_text[-1] == text[-1:]
        if is_same or len(self._window) > MAX_WINDOW_TOKENS:
            self._window, self._shown = tail, len(self._whole_part(tail_text))

    def _read_prompt(self, token_ids: Sequence[int]) -> None:
        """Keep the prompt's last ids as context, with some text among them."""
        tail: list[int] = []
        text = ""
        num_tokens = TAIL_TOKENS
        while not text and len(tail) < min(len(token_ids), MAX_PROMPT_TOKENS):
            tail = list(token_ids[-num_tokens:])
            text = self._decode(tail)
            num_tokens *= 2
        self._window = [token_id for token_id in tail if token_id not in self._hidden]
        whole = self._whole_part(text)
        self._shown, self._prompt_is_unfinished = len(whole), whole != text
        for token_id in self._window:
            value = self._byte_values.get(token_id)
            self._bytes = b"" if value is None else self._bytes + bytes([value])
        self._take_characters()
        self._num_prompt_bytes = len(self._bytes)


def token_text(decoder: Decoder, token_id: int, before: Sequence[int]) -> str:
    """One token's text, without the part of a character that it ends in.

    That comes with the token that completes the character, so that the texts of tokens in a row are
    the text of the row. `before` are the tokens in front of it.
    """
    text = decoder.decode([token_id])
    if REPLACEMENT not in text:
        return text
    for count in range(min(len(before), MAX_PIECES) + 1):
        head = list(before[len(before) - count :])
        whole = decoder.decode([*head, token_id]).rstrip(REPLACEMENT)
        if whole and not whole.startswith(REPLACEMENT):  # then `head` begins with a character
            known = decoder.decode(head).rstrip(REPLACEMENT) if head else ""
            return whole[len(known) :]
    return ""


class MarkingDecoder:
    """Another decoder, which never sees control tokens: in their place the text has marks."""

    def __init__(
        self, decoder: IncrementalDecoder | ByteDecoder, characters: Mapping[int, str]
    ) -> None:
        """`characters` are those that stand for tokens."""
        self._decoder = decoder
        self._characters = characters

    def feed(self, token_ids: Sequence[int]) -> str:
        if self._characters.keys().isdisjoint(token_ids):
            return self._decoder.feed(token_ids)
        text = ""
        for is_marked, run in groupby(token_ids, self._characters.__contains__):
            if is_marked:
                text += self._decoder.break_off()
                text += "".join(self._characters[token_id] for token_id in run)
            else:
                text += self._decoder.feed(list(run))
        return text

    def finish(self) -> str:
        return self._decoder.finish()


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
        spaces_between_special_tokens: bool = True,
        mark_characters: Mapping[int, str] | None = None,
    ) -> None:
        """With `mark_characters` the text is marked: these stand in the place of tokens."""
        table = getattr(tokenizer, "visible_bytes" if skip_special_tokens else "token_bytes", None)
        self._decoder: IncrementalDecoder | ByteDecoder | MarkingDecoder
        if table is not None and (skip_special_tokens or spaces_between_special_tokens):
            self._decoder = ByteDecoder(table, prompt_token_ids)
        else:
            self._decoder = IncrementalDecoder(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=spaces_between_special_tokens,
            )
        if mark_characters:
            self._decoder = MarkingDecoder(self._decoder, mark_characters)
        self._matcher = StopMatcher(stops, include_in_output=include_stop) if stops else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self.stop: str | None = None  # the stop string that was found

    def resume(self, token_ids: Sequence[int]) -> str:
        """Take up tokens whose text was shown already; what they held back is held again.

        Returns the text that counts as shown.
        """
        self._num_tokens += len(token_ids)
        shown = self._decoder.feed(token_ids[: self._min_tokens])
        text = self._decoder.feed(token_ids[self._min_tokens :])
        return shown + (text if self._matcher is None else self._match(text))

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
