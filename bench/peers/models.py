"""Checkpoints to measure with: real dimensions, random weights, a folder that every engine loads.

Speed depends on shapes, not on what the weights say, so nothing has to be downloaded. The tokenizer
is not trained either: its tokens are all words of one, two, three letters and so many of four as
fit, which makes prompts of an exact length easy and answers that show a text for each token.
"""

import itertools
import json
import shutil
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen2 splits words, because the converter of llama.cpp needs a splitting that it knows.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE = "Ġ"  # how byte-level vocabularies write a space
NUM_BYTES = 256
# Of the rows of the tokens that would end an answer, or be half a character that a stream holds
# back: the largest logit is never one of theirs, so each token of an answer is a word.
UNLIKELY = 0.01


@dataclass(frozen=True, slots=True)
class Shape:
    """What a made checkpoint has of its original: every dimension, and nothing of its weights."""

    family: str  # a `model_type`
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    seed: int
    ties_embeddings: bool = True


SHAPES = {
    "m1": Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151_936, 40_960, 1e6, 1e-6, 1),  # 0.6B
    "m2": Shape("llama", 768, 2048, 12, 12, 4, 64, 32_000, 8_192, 5e5, 1e-5, 2),  # 0.1B
    "tiny": Shape("qwen3", 64, 128, 2, 2, 1, 64, 2_048, 4_096, 1e6, 1e-6, 3),  # to try the harness
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that every engine loads, and what its steps must read from memory."""

    name: str
    folder: Path
    num_weights: int  # that a step reads: an embedding that is no head is looked up, not read
    kv_values: int  # keys and values of one token
    head_dim: int
    flops_per_token: int  # of a prompt, all but attention: logits are only for its last one
    flops_per_key: int  # of attention, for each token and each key that it sees

    @classmethod
    def open(cls, name: str, folder: Path) -> "Checkpoint":
        """Count from the shapes that config.json gives. Raises OSError, KeyError or ValueError."""
        config = json.loads((folder / "config.json").read_text())
        hidden = config["hidden_size"]
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        width = config.get("head_dim") or hidden // heads
        layers = config["num_hidden_layers"]
        attention = hidden * width * (2 * heads + 2 * kv_heads)
        mlp = 3 * hidden * config["intermediate_size"]
        body = layers * (attention + mlp)
        return cls(
            name,
            folder,
            num_weights=body + config["vocab_size"] * hidden,
            kv_values=2 * layers * kv_heads * width,
            head_dim=width,
            flops_per_token=2 * body,
            flops_per_key=4 * layers * heads * width,
        )


def checkpoint(model: str, cache: Path) -> Checkpoint:
    """One of `SHAPES`, made in `cache` where it is not there yet, or a folder that exists."""
    if model not in SHAPES:
        return Checkpoint.open(Path(model).name, Path(model))
    folder = cache / "models" / model
    if not (folder / "config.json").exists():
        part = folder.with_name(f"{model}.part")
        shutil.rmtree(part, ignore_errors=True)
        make(SHAPES[model], part)
        part.rename(folder)
    return Checkpoint.open(model, folder)


def make(shape: Shape, folder: Path) -> None:
    """Write a bfloat16 checkpoint with seeded random weights."""
    import torch
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True)
    torch.manual_seed(shape.seed)
    model: Any = AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16)
    with torch.no_grad():
        model.get_output_embeddings().weight[: len(SPECIAL_TOKENS) + NUM_BYTES] *= UNLIKELY
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    path = folder / "config.json"
    # Other readers look for these two where earlier versions of transformers wrote them.
    earlier = {"rope_theta": shape.rope_theta, "torch_dtype": "bfloat16"}
    path.write_text(json.dumps(json.loads(path.read_text()) | earlier, indent=2))
    write_tokenizer(shape.vocab_size, folder)


def make_without_weights(shape: Shape, folder: Path) -> Checkpoint:
    """What `load_format="dummy"` needs: config and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config_of(shape).save_pretrained(folder)
    write_tokenizer(shape.vocab_size, folder)
    return Checkpoint.open(folder.name, folder)


def config_of(shape: Shape) -> Any:
    """As transformers reads it."""
    from transformers import AutoConfig

    end = SPECIAL_TOKENS.index("<|im_end|>")
    return AutoConfig.for_model(
        shape.family,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        rms_norm_eps=shape.rms_norm_eps,
        tie_word_embeddings=shape.ties_embeddings,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=0,
    )


def write_tokenizer(vocab_size: int, folder: Path) -> None:
    """A byte-level BPE tokenizer of exactly so many tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == NUM_BYTES
    num_words = vocab_size - len(SPECIAL_TOKENS) - NUM_BYTES
    merges = list(itertools.islice(word_merges(), num_words))
    names = [*SPECIAL_TOKENS, *alphabet, *("".join(pair) for pair in merges)]
    assert len(names) == len(set(names)) == vocab_size
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def word_merges() -> Iterator[tuple[str, str]]:
    """Space and one letter, then one letter more, shortest words first: each word is one token."""
    letters = string.ascii_lowercase
    for length in itertools.count():
        for head in itertools.product(letters, repeat=length):
            for letter in letters:
                yield SPACE + "".join(head), letter
