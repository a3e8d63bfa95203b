"""Token ids to text where each token stands for some bytes, as in byte-level vocabularies.

What `detokenizer.IncrementalDecoder` finds out by decoding a window again and again is one look
into a table here, and one call of the UTF-8 decoder, which keeps the bytes of an unfinished
character for the next token.
"""

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, pre_tokenizers

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character
MAX_CHARACTER_BYTES = 4
MAX_PROMPT_TOKENS = 96  # where a prompt's last bytes are looked for


class TokenBytes(dict[int, bytes]):
    """Token id → the bytes it stands for, looked up once; `hidden` tokens have none."""

    def __init__(self, backend: tokenizers.Tokenizer, hidden: frozenset[int] = frozenset()) -> None:
        super().__init__(dict.fromkeys(hidden, b""))
        self._backend = backend

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""
        try:
            value = bytes(_BYTES[character] for character in token)
        except KeyError:  # an added token, which is written as it is
            value = token.encode()
        self[token_id] = value
        return value


def token_of_bytes(content: bytes) -> str:
    """How a byte-level vocabulary writes the token that stands for these bytes, if it has one."""
    return "".join(_CHARACTERS[byte] for byte in content)


def joins_bytes(backend: tokenizers.Tokenizer) -> bool:
    """Whether decoding does no more than join the tokens' bytes."""
    return isinstance(backend.decoder, decoders.ByteLevel)


class ByteDecoder:
    """The text that ids add to a prompt: to the bytes it ends in, if these are no character yet."""

    def __init__(self, table: Mapping[int, bytes], prompt_token_ids: Sequence[int] = ()) -> None:
        self._table = table
        tail = b""
        for token_id in reversed(prompt_token_ids[-MAX_PROMPT_TOKENS:]):
            tail = table[token_id] + tail
            if len(tail) >= MAX_CHARACTER_BYTES:
                break
        _, num_read = utf_8_decode(tail, "replace", False)
        rest = tail[num_read:]
        # The start of a surrogate is held back as if it were one of a character. It is none: the
        # prompt has what it is written as.
        is_unfinished = len(rest.decode(errors="replace")) == 1
        self._rest = rest if is_unfinished else b""  # the bytes of an unfinished character
        # The answer may finish it, but is not to blame if it does not.
        self._is_of_prompt = bool(self._rest)

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text these ids complete. What ends in an unfinished character waits for the rest."""
        table = self._table
        data = self._rest
        for token_id in token_ids:
            data += table[token_id]
        return self._take(data, is_end=False)

    def finish(self) -> str:
        """What is still held: an unfinished character becomes U+FFFD, as in a full decode."""
        return self._take(self._rest, is_end=True)

    def break_off(self) -> str:
        """The same where more follows, which does not complete it."""
        return self.finish()

    def _take(self, data: bytes, *, is_end: bool) -> str:
        text, num_read = utf_8_decode(data, "replace", is_end)
        self._rest = data[num_read:]
        if text and self._is_of_prompt:
            self._is_of_prompt = False
            return text.removeprefix(REPLACEMENT)
        return text


def _characters_of_bytes() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others are moved past U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + place): byte for place, byte in enumerate(others)}
    assert alphabet.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


_BYTES = _characters_of_bytes()
_CHARACTERS = {byte: character for character, byte in _BYTES.items()}
