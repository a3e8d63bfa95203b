"""Tiny checkpoints with real tokenizers, built by the tests in seconds: nothing is downloaded.

`build_tiny_model` makes a random model of any architecture whose greedy output is irregular enough
to show a wrong cache, mask or position. `build_oracle_model` makes one whose output is a formula:
the greedy successor of token t is t + 1, so a lost, doubled or crossed token shows in the string.

Both are ordinary Hugging Face folders (config.json, safetensors, tokenizer.json, chat template).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PretrainedConfig, PreTrainedModel

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = [END_OF_TEXT, "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
VOCAB_SIZE = 384  # 256 bytes, 3 special tokens, the rest merges
MAX_POSITIONS = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ORACLE_CHAT_TEMPLATE = (
    "{% for message in messages if message.role == 'user' %}"
    "{% if loop.last %}{{ message.content }}{% endif %}{% endfor %}"
)
ORACLE_WIDTH = 256
ORACLE_VOCAB = 17_000
TRAINING_TEXT = [
    "The lighthouse keeper wrote a letter to the sea, and the sea wrote back in foam.",
    "Once upon a time there was a small grey cat who wanted to know where the tide went.",
    "Hello, how are you today? I am well, thank you; tell me a long story, please.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. 東京の朝は静かです。",
    "def add(a, b):\n    return a + b\n",
]

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
}
_GPT2_SHAPE: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": VOCAB_SIZE,
    "n_positions": MAX_POSITIONS,
}
_GEMMA_SHAPE = _SHAPE | {"head_dim": 16, "sliding_window": 6, "tie_word_embeddings": False}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name: (config class, its fields)
    "llama": ("LlamaConfig", _SHAPE),
    "qwen2": ("Qwen2Config", _SHAPE),
    "qwen3": ("Qwen3Config", _SHAPE | {"head_dim": 16}),
    "gpt2": ("GPT2Config", _GPT2_SHAPE),
    "mistral": ("MistralConfig", _SHAPE | {"sliding_window": 6}),
    "gemma2": ("Gemma2Config", _GEMMA_SHAPE),
    "gemma3": ("Gemma3TextConfig", _GEMMA_SHAPE),
    "phi3": ("Phi3Config", _SHAPE),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 64,
            "ffn_dim": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": MAX_POSITIONS,
            "word_embed_proj_dim": 64,
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", {k: v for k, v in _SHAPE.items() if k != "num_key_value_heads"}),
    "gpt_bigcode": ("GPTBigCodeConfig", _GPT2_SHAPE),
    "stablelm": ("StableLmConfig", _SHAPE),
    "starcoder2": ("Starcoder2Config", _SHAPE),
    "olmo2": ("Olmo2Config", _SHAPE),
    "smollm3": ("SmolLM3Config", _SHAPE),
    "qwen3_moe": ("Qwen3MoeConfig", _SHAPE | _EXPERTS | {"head_dim": 16, "num_experts": 4}),
    "gpt_oss": (
        "GptOssConfig",
        _SHAPE
        | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        _SHAPE
        | _EXPERTS
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
        },
    ),
    # architectures that never call the attention interface: loaders must refuse them
    "bloom": (
        "BloomConfig",
        {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": VOCAB_SIZE},
    ),
    "falcon": (
        "FalconConfig",
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": VOCAB_SIZE,
        },
    ),
    "mpt": ("MptConfig", {"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": VOCAB_SIZE}),
    "gptj": ("GPTJConfig", _GPT2_SHAPE | {"rotary_dim": 8}),
}


def build_tiny_model(
    folder: str | Path,
    family: str = "llama",
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    initializer_range: float = 0.2,
) -> Path:
    """Write a random float32 `family` model (3 layers, width 64) with a byte-level BPE tokenizer.

    The end-of-text logit is always 0, so in practice greedy answers end by length, not by chance.
    """
    class_name, fields = _FAMILIES[family]
    special_ids = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config: PretrainedConfig = getattr(transformers, class_name)(**fields, **special_ids)
    config.initializer_range = initializer_range  # at the usual 0.02 it repeats one token for ever
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomize_biases_and_norms(model)
    with torch.no_grad():
        model.get_output_embeddings().weight[0].zero_()
    return _save(Path(folder), model, _byte_level_tokenizer(), chat_template, eos_token=END_OF_TEXT)


def give_marks(folder: Path, marks: Sequence[str]) -> Path:
    """Make tokens of the vocabulary these marks: the last ones, which no other is merged from."""
    file = folder / "tokenizer.json"
    definition = json.loads(file.read_text())
    vocabulary = definition["model"]["vocab"]
    by_id = {token_id: token for token, token_id in vocabulary.items()}
    for token_id, mark in enumerate(marks, VOCAB_SIZE - len(marks)):
        del vocabulary[by_id[token_id]]
        definition["added_tokens"].append(
            {
                "id": token_id,
                "content": mark,
                **dict.fromkeys(
                    ("single_word", "lstrip", "rstrip", "normalized", "special"), False
                ),
            }
        )
    definition["model"]["merges"] = [
        each for each in definition["model"]["merges"] if "".join(each) in vocabulary
    ]
    file.write_text(json.dumps(definition))
    return folder


def build_tiny_classifier(
    folder: str | Path, family: str = "llama", num_labels: int = 3, **fields: Any
) -> Path:
    """As `build_tiny_model`, with transformers' head for `num_labels` classes of whole texts."""
    class_name, shape = _FAMILIES[family]
    special_ids = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config: PretrainedConfig = getattr(transformers, class_name)(**shape, **special_ids, **fields)
    config.num_labels = num_labels
    config.initializer_range = 0.15
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    randomize_biases_and_norms(model)
    return save_tiny_model(Path(folder), model)


def build_oracle_model(
    folder: str | Path,
    vocab: int = ORACLE_VOCAB,
    max_positions: int = 32_768,
    num_layers: int = 1,
    mlp_width: int = 16,
    tokenizer: Tokenizer | None = None,
    chat_template: str = ORACLE_CHAT_TEMPLATE,
    eos_token_ids: list[int] | None = None,
) -> Path:
    """Write the model that counts: the greedy successor of token t is t + 1, after any text.

    Token n is the word `oracle_word(n)`, trailing space included; token 0 is the unknown word.
    A prompt is the last user message alone and no token ends an answer. It works because attention
    and MLP add nothing: the residual stream is the embedding (random ±1, width 256), and row t + 1
    of the head is the embedding of t, so the right logit is 256 and any other stays below 100.
    With another tokenizer the tokens are other words, and these ids may end an answer.
    More and wider layers add nothing to the text, and make a step cost what a real model's does.
    """
    config = transformers.LlamaConfig(
        hidden_size=ORACLE_WIDTH,
        intermediate_size=mlp_width,
        num_hidden_layers=num_layers,
        num_attention_heads=1,
        head_dim=16,
        vocab_size=vocab,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos_token_ids,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    signs = torch.randint(0, 2, (vocab, ORACLE_WIDTH), generator=torch.Generator().manual_seed(0))
    embedding = signs.float() * 2 - 1
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(embedding.roll(1, dims=0))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return _save(
        Path(folder),
        model,
        tokenizer or _counting_tokenizer(vocab),
        chat_template,
        unk_token="<unk>",
    )


def oracle_word(token_id: int) -> str:
    """The text of an oracle token: `t00417 `."""
    return f"t{token_id:05d} "


def oracle_answer(last_token_id: int, num_tokens: int) -> str:
    """The greedy answer of the oracle model after a prompt that ends in `last_token_id`."""
    return "".join(oracle_word(last_token_id + i) for i in range(1, num_tokens + 1))


def randomize_biases_and_norms(model: PreTrainedModel) -> None:
    """Fresh models have zero biases and sinks and all-one norms: a forgotten one would not show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("sinks"):
                parameter.add_(torch.randn_like(parameter) * 0.1)


def _byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 4, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def _counting_tokenizer(vocab: int) -> Tokenizer:
    """One token per word; runs of other text become one unknown token; decoding joins the words."""
    words = {"<unk>": 0} | {oracle_word(n): n for n in range(1, vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\z"), " "), normalizers.Replace(Regex(r"\s+"), " ")]
    )  # so that a last word without its space is still a word
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"t\d{5} "), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def save_tiny_model(folder: Path, model: PreTrainedModel) -> Path:
    """Write any model whose vocabulary is as large as that of the byte-level tokenizer."""
    return _save(folder, model, _byte_level_tokenizer(), CHAT_TEMPLATE, eos_token=END_OF_TEXT)


def _save(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    chat_template: str | None,
    **special: str,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save: Callable[[Path], None] = model.save_pretrained
    save(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    return folder
