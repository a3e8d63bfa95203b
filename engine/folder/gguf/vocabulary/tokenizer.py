"""tokenizer.json and tokenizer_config.json of a GGUF file."""

from typing import Any

from tokenizers import Tokenizer

from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.vocabulary.byte_level import make_byte_level, words_of
from engine.folder.gguf.vocabulary.sentencepiece import make_sentencepiece
from engine.folder.gguf.vocabulary.tokens import Tokens, read_tokens
from engine.folder.model_files import reading

MAKERS = {"gpt2": make_byte_level, "llama": make_sentencepiece}
_MODEL = "tokenizer.ggml.model"
_SPECIAL = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep"}


def make_tokenizer(metadata: Metadata, num_rows: int) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and tokenizer_config.json with special tokens and chat template.

    `num_rows` are those of the embeddings. Raises `UnsupportedModelError`.
    """
    kind = check_kind(metadata)
    tokens = read_tokens(metadata, num_rows)
    with reading(metadata.file, "tokenizer.ggml"):
        backend = MAKERS[kind](tokens, metadata)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= _special_tokens(tokens, metadata)
    if (template := metadata.text("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    if metadata.has("{arch}.context_length"):
        config["model_max_length"] = metadata.count("{arch}.context_length")
    return backend, config


def check_kind(metadata: Metadata) -> str:
    """Which of the kinds read here it is, as far as can be said without its tokens.

    Raises `UnsupportedModelError`.
    """
    kind = metadata.text(_MODEL)
    if kind is None or kind not in MAKERS:
        known = ", ".join(sorted(MAKERS))
        metadata.refuse(f"{_MODEL} is {kind!r}; those read here are {known}")
    if kind == "gpt2":
        words_of(metadata)
    return kind


def _special_tokens(tokens: Tokens, metadata: Metadata) -> dict[str, Any]:
    ids = {name: metadata.token_id(key) for key, name in _SPECIAL.items()}
    return {
        f"{name}_token": tokens.texts[token_id]
        for name, token_id in ids.items()
        if token_id is not None and token_id < len(tokens.texts)
    }
