"""`Checkpoint`: what the folder of a model says, whose weights an engine elsewhere has.

Only its tokenizer, its chat template and its configuration are read here: weights need not lie
there. An engine whose tokenizer is another would read another text, and is refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.client.text.tokenizer import Tokenizer
from engine.errors import UnsupportedModelError
from engine.folder.model_config import check_config, check_token_ids, vocab_size
from engine.folder.model_files import read_json
from server.engines.remote.dialects.dialect import Ask, Dialect
from server.engines.remote.wire.problems import Misfit

TEXTS = (  # whose ids differ wherever vocabularies, merges, spaces or Unicode are treated otherwise
    "The quick brown fox jumps over 13 lazy dogs, doesn't it?",
    "  two spaces,\ttabs\nand lines\r\n\n  def f(x): return x**2  ",
    "Größe, naïve, 東京都, العربية, ελληνικά, 👩‍🚀 1234567890 3.14159",
)


@dataclass(frozen=True)
class Checkpoint:
    """`max_model_len` is what the operator allows of what the engine can; None: all of it."""

    folder: Path
    tokenizer: Tokenizer
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int | None = None


def read_checkpoint(
    folder: Path, max_model_len: int | None = None, tokenizer: Tokenizer | None = None
) -> Checkpoint:
    """Raises `UnsupportedModelError` for a folder that no answer can be read with."""
    file = folder / "config.json"
    config = read_json(file)
    if config is None:
        raise UnsupportedModelError(f"{folder} has no config.json")
    check_config(file, config)
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) or {}
    size = vocab_size(config)
    check_token_ids(file, config, size)
    check_token_ids(generation_file, generation, size)
    tokenizer = tokenizer or Tokenizer(folder)
    ends = {*_ids(generation), *_ids(config)}
    if not ends and tokenizer.eos_token_id is not None:
        ends = {tokenizer.eos_token_id}
    return Checkpoint(
        folder=folder,
        tokenizer=tokenizer,
        vocab_size=size or len(tokenizer),
        eos_token_ids=tuple(sorted(ends)),
        max_model_len=max_model_len,
    )


async def check_agreement(dialect: Dialect, ask: Ask, checkpoint: Checkpoint) -> None:
    """Compare the ids of some texts, if it tells its own. Raises `Misfit`, and `RemoteProblem`."""
    tokenizer = checkpoint.tokenizer
    for text in TEXTS:
        theirs = await dialect.tokenize(ask, text)
        if theirs is None:
            return
        ours = tokenizer.encode(text, add_special_tokens=False)
        if ours != theirs:
            place = next(
                (n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
                min(len(ours), len(theirs)),
            )
            raise Misfit(
                f"its tokenizer is another than that of {checkpoint.folder}: of {text!r} it has"
                f" {len(theirs)} ids, and {len(ours)} are expected, alike up to number {place}"
            )


def _ids(config: dict[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    return value if isinstance(value, list) else [] if value is None else [value]
