"""Texts of any kind, for tokenizers: words, numbers, spaces, scripts, and special tokens amid."""

import random
from collections.abc import Iterator, Sequence

_PIECES = (
    *("Hello", "hello", "HELLO", "I'm", "we'LL", "don't", "x", "foam", "lighthouse", "thee", "the"),
    *("1", "42", "2024", "1234567", "3.14", "½", "٣", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t"),
    *("!", "...", "/", "()", "{'a': 1}", "->", "é", "e\u0301", "ß", "žluťoučký", "東京", "です"),
    *(
        "สวัสดี",
        "한국어",
        "👩‍👩‍👧",
        "😀",
        "\u200b",
        "\xa0",
        "▁",
        "_",
        *("สวัสดี", "한국어", "👩\u200d👩\u200d👧", "😀", "\u200b", "\xa0", "▁", "_"),
        *("<0x41>", "ǅ", "ﬁ", "ʼ", "\x00"),
        "ǅ",
        "ﬁ",
        "ʼ",
        "\x00",
    ),
    *("\u0345", "camelCase", "ABCdef", "[PAD383]", "'", "'S", "�", "\U000e0001", "<", ">", "|"),
)


def random_texts(seed: int, count: int, special: Sequence[str] = ()) -> Iterator[str]:
    """So many; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        pieces = []
        for _ in range(rng.randrange(12)):
            kind = rng.random()
            if special and kind < 0.15:
                pieces.append(rng.choice(special))
            elif kind < 0.25:
                pieces.append(chr(rng.choice((rng.randrange(32, 0xD800), rng.randrange(0x250)))))
            else:
                pieces.append(rng.choice(_PIECES))
            pieces.append(rng.choice(("", "", " ")))
        yield "".join(pieces)
