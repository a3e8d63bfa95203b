"""Ids are those that SentencePiece's own algorithm finds, and of what is written and read back."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from engine.errors import UnsupportedModelError
from tests.engine.helpers.gguf.random_texts import random_texts
from tests.engine.helpers.small_tokenizers import build_mistral

NUM_TEXTS = 1500
NUM_ROWS = 500
SPECIAL = ["<s>", "</s>", "[INST]", "[/INST]"]


def sentencepiece_ids(text: str, scores: dict[str, float], ids: dict[str, int]) -> list[int]:
    """As SentencePiece encodes a text without special tokens: the best pair first, from the left.

    What is no token becomes its bytes.
    """
    symbols = list(f"▁{text}".replace(" ", "▁")) if text else []
    while True:
        pairs = [left + right for left, right in pairwise(symbols)]
        known = [(-scores[pair], place) for place, pair in enumerate(pairs) if pair in scores]
        if not known:
            break
        _, place = min(known)
        symbols[place : place + 2] = [pairs[place]]
    found = []
    for symbol in symbols:
        if symbol in scores:
            found.append(ids[symbol])
        else:
            found.extend(ids[f"<0x{byte:02X}>"] for byte in symbol.encode())
    return found


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return build_mistral(tmp_path / "mistral")


def test_ids_are_those_of_sentencepiece(original: Path, there_and_back: Any) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    made, config = there_and_back(original, NUM_ROWS)
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == (
        *("<s>", "</s>"),
        "<unk>",
    )
    vocabulary = json.loads((original / "tokenizer.json").read_text())["model"]["vocab"]
    scores = {
        text: -float(token_id)
        for text, token_id in vocabulary.items()
        if text not in (*SPECIAL, "<unk>") and not text.startswith("<0x")
    }
    for text in random_texts(seed, NUM_TEXTS):
        expected = sentencepiece_ids(text, scores, vocabulary)
        assert made.encode(text, add_special_tokens=False).ids == expected, text


def test_special_tokens_and_texts_are_those_of_the_original(
    original: Path, there_and_back: Any
) -> None:
    from tokenizers import Tokenizer

    seed = random.randrange(2**32)
    print(f"seed {seed}")
    made, _ = there_and_back(original, NUM_ROWS)
    before = Tokenizer.from_file(str(original / "tokenizer.json"))
    special = {before.token_to_id(each) for each in SPECIAL}
    rng = random.Random(seed)
    for text in random_texts(seed, NUM_TEXTS, SPECIAL):
        ids, known = made.encode(text).ids, before.encode(text).ids
        assert ids[0] == made.token_to_id("<s>")
        assert [each for each in ids if each in special] == [
            each for each in known if each in special
        ]
        some = [rng.randrange(before.get_vocab_size(True)) for _ in range(10)]
        for skips in (True, False):
            for each in (ids, some):
                expected = before.decode(each, skip_special_tokens=skips)
                assert made.decode(each, skip_special_tokens=skips) == expected


def test_no_space_is_put_in_front_if_the_file_says_so(original: Path, there_and_back: Any) -> None:
    made, _ = there_and_back(
        original, NUM_ROWS, edit=lambda writer: writer.add_add_space_prefix(False)
    )
    ids = made.encode("Hello", add_special_tokens=False).ids
    assert not made.id_to_token(ids[0]).startswith("▁")
    assert made.decode(ids) == "Hello"
    assert made.decode(made.encode(" Hello", add_special_tokens=False).ids) == " Hello"


@pytest.mark.parametrize(("arch", "takes"), [("phi3", True), ("llama", False)])
def test_special_tokens_of_phi_3_take_the_line_end_after_them(
    original: Path, there_and_back: Any, arch: str, takes: bool
) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0]["general.architecture"].value = arch

    made, _ = there_and_back(original, NUM_ROWS, edit=edit)
    user, bos = made.token_to_id("[INST]"), made.token_to_id("<s>")
    plain = made.encode("[INST]a", add_special_tokens=False).ids
    spaced = made.encode("[INST] \na", add_special_tokens=False).ids
    assert (spaced == plain) is takes
    assert spaced[0] == user
    assert len(made.encode("<s>\n", add_special_tokens=False).ids) > len([bos])


@pytest.mark.parametrize(
    ("scores", "says"), [([0.0], "must have a score"), ([float("nan")] * NUM_ROWS, "finite")]
)
def test_scores_must_be_numbers_for_all(
    original: Path, there_and_back: Any, scores: list[float], says: str
) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.scores"].value = scores

    with pytest.raises(UnsupportedModelError, match=says):
        there_and_back(original, NUM_ROWS, edit=edit)


def test_tokens_that_would_take_for_ever_are_refused(original: Path, there_and_back: Any) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.tokens"].value[400] = "a" * 100_000

    with pytest.raises(UnsupportedModelError, match="tokens that are too long"):
        there_and_back(original, NUM_ROWS, edit=edit)
