"""A model that answers anything with one text, in tokens that end inside characters.

It is the counting oracle with another tokenizer: token n is the n-th piece of the text, and the
successor of a token is the next piece. Any character of a prompt is the unknown token 0.
"""

from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.helpers.tiny_model import build_oracle_model

MAX_POSITIONS = 512
CONTROL_TOKENS = ["<|im_start|>", "<|im_end|>"]  # after one of these comes another text
# Astral characters, joiners, flags, variation selectors, combining marks, and plain text between.
SPELLED = "".join(
    f"{person}\u200d{thing} {flag} e\u0301{number} Ž{sign}\ufe0f\n"
    for number, (person, thing, flag, sign) in enumerate(
        zip("👩👨🧑👧👦👵", "🚀🎨🌾🔬🎓🍳", "🇨🇿 🇯🇵 🇧🇷 🇰🇪 🇫🇷 🇮🇳".split(), "❤☀☎✈✂☃", strict=True)
    )
)


def build_spelling_model(
    folder: Path, text: str = SPELLED, *, ends: bool = False, **model: Any
) -> tuple[Path, int]:
    """The folder, and how many tokens the whole text has; `ends`: after it the answer is over."""
    pieces = _pieces(text)
    vocab = 1 + len(pieces) + len(CONTROL_TOKENS)
    eos_token_ids = [1 + len(pieces)] if ends else None
    model = {"max_positions": MAX_POSITIONS, "eos_token_ids": eos_token_ids, **model}
    build_oracle_model(folder, vocab=vocab, **model)
    vocabulary = {"<unk>": 0} | {piece: number for number, piece in enumerate(pieces, 1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", *CONTROL_TOKENS])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, len(pieces)


def _pieces(text: str) -> list[str]:
    """Different pieces that end inside a character wherever there is one of several bytes."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((spelled, _),) = byte_level.pre_tokenize_str(text)  # one letter for each byte
    data = text.encode()
    pieces: dict[str, None] = {}
    start = 0
    while start < len(data):
        end = start + 1
        while end < len(data) and (spelled[start:end] in pieces or not _is_inside(data, end)):
            end += 1
        pieces[spelled[start:end]] = None
        start = end
    return list(pieces)


def _is_inside(data: bytes, place: int) -> bool:
    """Whether a cut at `place` goes through a character."""
    return data[place] & 0xC0 == 0x80
