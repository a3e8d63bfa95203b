"""Made checkpoints are ordinary folders with the tokens and sizes that they should have."""

import itertools
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.peers.models import SHAPES, Checkpoint, checkpoint, word_merges


def test_words_grow_by_a_letter_and_the_shorter_come_first() -> None:
    merges = list(itertools.islice(word_merges(), 26 + 26 * 26 + 1))
    assert [merges[0], merges[25], merges[26]] == [("Ġ", "a"), ("Ġ", "z"), ("Ġa", "a")]
    assert merges[-1] == ("Ġaa", "a")


def test_each_word_of_the_vocabulary_is_one_token(checkpoint_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint_folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 1200
    assert tokenizer.encode(" ab cd z").tokens == ["Ġab", "Ġcd", "Ġz"]
    text = " ab Tür 東京\n{}"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1


def test_what_a_step_reads_is_counted_from_the_shape(checkpoint_folder: Path) -> None:
    found = Checkpoint.open("small", checkpoint_folder)
    layer = 64 * 64 * (2 * 2 + 2 * 1) + 3 * 64 * 128
    assert found.num_weights == 2 * layer + 1200 * 64
    assert found.kv_values == 2 * 2 * 1 * 64
    assert found.flops_per_token == 2 * (2 * layer)
    assert found.flops_per_key == 2 * 2 * (2 * 2 * 64)  # of 2 heads in 2 layers: keys and values


def test_m1_has_the_size_of_its_original() -> None:
    shape = SHAPES["m1"]
    attention = shape.hidden_size * shape.head_dim * 2 * (16 + 8)
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size
    num_weights = shape.num_hidden_layers * layer + shape.vocab_size * shape.hidden_size
    assert num_weights == pytest.approx(596e6, rel=0.01)


def test_a_folder_of_ones_own_is_taken_as_it_is(checkpoint_folder: Path, tmp_path: Path) -> None:
    assert checkpoint(str(checkpoint_folder), tmp_path).folder == checkpoint_folder
    assert list(tmp_path.iterdir()) == []
