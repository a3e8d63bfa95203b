"""A tokenizer.json, written to a GGUF file and read back, gives the same ids and texts."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre

from engine import demo_model
from engine.errors import UnsupportedModelError
from engine.folder.gguf.vocabulary.byte_level import WORDS
from tests.engine.helpers.gguf.random_texts import random_texts

NUM_TEXTS = 1500
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# As they stand in tokenizer.json of Llama 3, Qwen 2 and 3, Mistral Nemo, gpt-oss, DeepSeek V3.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def split(*patterns: str) -> Any:
    by_bytes = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre.Sequence([*(pre.Split(Regex(each), "isolated") for each in patterns), by_bytes])


GPT2 = pre.ByteLevel(add_prefix_space=False)
DIGITS = pre.Sequence([pre.Digits(individual_digits=True), GPT2])
ORIGINALS: dict[str, dict[str, Any]] = {
    "default": {"pre": GPT2},
    "gpt-2": {"pre": GPT2},
    "olmo": {"pre": GPT2, "normalizer": normalizers.NFC()},
    "smollm": {"pre": DIGITS},
    "starcoder": {"pre": DIGITS},
    "refact": {"pre": DIGITS},
    "command-r": {"pre": DIGITS, "normalizer": normalizers.NFC()},
    "dbrx": {"pre": split(LLAMA3)},
    "smaug-bpe": {"pre": split(LLAMA3)},
    "glm4": {"pre": split(LLAMA3)},
    "gpt-4o": {"pre": split(GPT4O)},
    "deepseek-v3": {"pre": split(*DEEPSEEK3)},
    "stablelm2": {"pre": split(QWEN2)},
    "llama-bpe": {"pre": split(LLAMA3), "ignore_merges": True, "adds_bos": True},
    "llama-v3": {"pre": split(LLAMA3), "ignore_merges": True, "adds_bos": True},
    "llama3": {"pre": split(LLAMA3), "ignore_merges": True, "adds_bos": True},
    "qwen2": {"pre": split(QWEN2), "normalizer": normalizers.NFC()},
    "deepseek-r1-qwen": {"pre": split(QWEN2)},
    "tekken": {"pre": split(TEKKEN), "ignore_merges": True, "adds_bos": True},
}


def build(folder: Path, name: str) -> Tokenizer:
    """The original: the vocabulary of the demo model, special tokens after it and others amid."""
    found = ORIGINALS[name]
    model = json.loads((demo_model() / "tokenizer.json").read_text())["model"]
    words = [word for word in model["vocab"] if word not in SPECIAL]
    words.insert(5, "[FIM]")  # of the vocabulary, and added
    merges = [tuple(pair) for pair in model["merges"]]
    ignore_merges = found.get("ignore_merges", False)
    if ignore_merges:
        words.append("Ġlighthouses")  # which no merge leads to
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    backend.pre_tokenizer = found["pre"]
    backend.decoder = decoders.ByteLevel()
    if "normalizer" in found:
        backend.normalizer = found["normalizer"]
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in [*SPECIAL, "[FIM]"]])
    thinking = ["<think>", "</think>"]
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in thinking])
    config = {"eos_token": "<|im_end|>"}
    if found.get("adds_bos"):
        bos = backend.token_to_id("<|endoftext|>")
        assert bos is not None
        config["bos_token"] = "<|endoftext|>"
        backend.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
        )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return backend


def without(key: str) -> Callable[[GGUFWriter], None]:
    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)

    return edit


def test_all_known_names_have_an_original() -> None:
    assert ORIGINALS.keys() == WORDS.keys()


@pytest.mark.parametrize("name", ORIGINALS)
def test_ids_and_texts_are_those_of_the_original(
    tmp_path: Path, there_and_back: Any, name: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    original = build(tmp_path, name)
    num_tokens = original.get_vocab_size(True)
    edit = without("tokenizer.ggml.add_bos_token")  # each kind has its own default
    made, config = there_and_back(tmp_path, num_tokens + 20, name, edit)
    assert made.get_vocab_size(True) == num_tokens
    assert config["eos_token"] == "<|im_end|>"
    special = [*SPECIAL, "<think>", "</think>", "[FIM]", " lighthouses", f"[PAD{num_tokens}]"]
    rng = random.Random(seed)
    for text in random_texts(seed, NUM_TEXTS, special):
        ids = original.encode(text).ids
        assert made.encode(text).ids == ids, text
        plain = original.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special_tokens=False).ids == plain, text
        some = [rng.randrange(num_tokens) for _ in range(10)]
        for skips in (True, False):
            for each in (ids, some):
                expected = original.decode(each, skip_special_tokens=skips)
                assert made.decode(each, skip_special_tokens=skips) == expected


def test_tokenizer_of_the_demo_model_is_cut_by_rules_that_no_file_names(
    there_and_back: Any,
) -> None:
    with pytest.raises(UnsupportedModelError, match="by the rules 'parley-demo'; known are comma"):
        there_and_back(demo_model(), 2560, "parley-demo")


def test_file_says_whether_a_text_begins_with_bos_and_ends_with_eos(
    tmp_path: Path, there_and_back: Any
) -> None:
    original = build(tmp_path, "llama-bpe")

    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.add_bos_token"].value = False
        writer.add_add_eos_token(True)

    made, _ = there_and_back(tmp_path, original.get_vocab_size(True), "llama-bpe", edit)
    plain = original.encode("Hello", add_special_tokens=False).ids
    assert made.encode("Hello").ids == [*plain, original.token_to_id("<|im_end|>")]
