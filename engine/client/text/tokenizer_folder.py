"""`read_folder`: what the files of a checkpoint say about its tokenizer.

Checkpoints have said it in several ways over the years; users of the result need not know them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from engine.client.templates.chat_template import ChatTemplate
from engine.errors import UnsupportedModelError, ValidationError
from engine.folder.model_config import vocab_size
from engine.folder.model_files import (
    BYTE_ORDER_MARK,
    MAX_TOKENIZER_BYTES,
    exists,
    open_file,
    read_json,
    read_text,
    reading,
    wrong,
)

SPECIAL_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
TRIAL = "Hello, 東京!"


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """The tokenizer of a checkpoint, as its folder has it."""

    config: dict[str, Any]  # tokenizer_config.json
    special_tokens: dict[str, str]  # name → text
    backend: tokenizers.Tokenizer
    backend_file: Path
    chat_template: str | None  # source
    template_file: Path  # that the source is in, or would be


def read_folder(folder: Path) -> TokenizerFolder:
    """Raises `UnsupportedModelError` for a folder without a tokenizer that we can read."""
    config_file = folder / "tokenizer_config.json"
    config = read_json(config_file) or {}
    _check_config(config_file, config)
    special_tokens = _read_special_tokens(folder, config)
    file = folder / "tokenizer.json"
    backend = _load_backend(file)
    if backend is None:
        file = folder / "vocab.json"
        backend = _load_byte_level_bpe(folder)
        special_tokens.setdefault("eos_token", "<|endoftext|>")
    _check_vocabulary(file, backend)
    with reading(file):
        _add_missing_tokens(backend, config, special_tokens.values())
        backend.decode(backend.encode(TRIAL).ids)
    template, template_file = _read_chat_template(folder, config)
    return TokenizerFolder(config, special_tokens, backend, file, template, template_file)


def _check_config(file: Path, config: Mapping[str, Any]) -> None:
    length = config.get("model_max_length")
    if isinstance(length, float) and math.isinf(length):
        raise wrong(file, "model_max_length", length, "must be finite")
    declared = config.get("added_tokens_decoder")
    if declared is not None and not isinstance(declared, dict):
        raise wrong(file, "added_tokens_decoder", declared, "must be an object")
    for token_id, token in (declared or {}).items():
        if not (token_id.isascii() and token_id.isdigit() and len(token_id) < 10):
            raise wrong(file, "added_tokens_decoder", token_id, "must name token ids")
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            place = f"added_tokens_decoder.{token_id}"
            raise wrong(file, place, token, "must be an object with content")


def try_chat_template(folder: Path) -> None:
    """Compile the template of a checkpoint, if it has one, and render some conversations with it.

    Raises `UnsupportedModelError`, which names the file, for one that is broken or leaves its
    bounds.
    """
    source, file = _read_chat_template(folder, read_json(folder / "tokenizer_config.json") or {})
    if source is None:
        return
    template = ChatTemplate(source)
    try:
        try_template(template, file)
    finally:
        template.close()


def try_template(template: ChatTemplate, file: Path) -> None:
    """The same for a template that was read from this file."""
    try:
        template.try_out()
    except ValidationError as error:
        raise UnsupportedModelError(f"{file}: chat_template: {error}") from None


def _read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    older_file = folder / "special_tokens_map.json"
    older = read_json(older_file) or {}
    found: dict[str, str] = {}
    for name in SPECIAL_NAMES:
        file = folder / "tokenizer_config.json" if name in config else older_file
        token = config.get(name, older.get(name))
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None and not isinstance(text, str):
            raise wrong(file, name, token, "must be text, or an object with content")
        if text:
            found[name] = text
    return found


def _load_backend(file: Path) -> tokenizers.Tokenizer | None:
    if not exists(file, MAX_TOKENIZER_BYTES):
        return None
    with open_file(file) as stream:
        if stream.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK:
            problem = "begins with a byte order mark; save it without one"
            raise UnsupportedModelError(f"{file}: {problem}")
    with reading(file):
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.no_truncation()
        backend.no_padding()
    return backend


def _load_byte_level_bpe(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2 and its kin were published before tokenizer.json was."""
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not (exists(vocabulary, MAX_TOKENIZER_BYTES) and exists(merges, MAX_TOKENIZER_BYTES)):
        problem = "is missing; the tokenizer must be in it, or in vocab.json and merges.txt"
        raise UnsupportedModelError(f"{folder / 'tokenizer.json'}: {problem}")
    with reading(vocabulary, "with merges.txt"):
        backend = tokenizers.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


def _check_vocabulary(file: Path, backend: tokenizers.Tokenizer) -> None:
    """Its ids are rows of the model, if config.json beside it says how many the model has.

    Tokens that were added to the vocabulary may be beyond them, as some models have them that
    nobody writes: a request that does is refused by itself.
    """
    num_tokens = backend.get_vocab_size(with_added_tokens=False)
    if not backend.get_vocab_size(with_added_tokens=True):
        raise UnsupportedModelError(f"{file}: model.vocab is empty")
    model = read_json(file.with_name("config.json"))
    limit = None if model is None else vocab_size(model)
    if limit is not None and num_tokens > limit:
        problem = f"model.vocab has {num_tokens} tokens, vocab_size in config.json is {limit}"
        raise UnsupportedModelError(f"{file}: {problem}")


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Iterable[str]
) -> None:
    """tokenizer_config.json may declare tokens that tokenizer.json does not have."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
            options = {name: bool(token[name]) for name in flags if name in token}
            known.add(token["content"])
            backend.add_tokens([tokenizers.AddedToken(token["content"], **options)])
    missing = [text for text in special_tokens if text not in known]
    backend.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in missing])


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, Path]:
    """That of a processor for pictures, which has its own file, goes before the tokenizer's."""
    file = folder / "chat_template.jinja"
    text = read_text(file)
    if text is not None:
        return text, file
    for file in (folder / "chat_template.json", folder / "processor_config.json"):
        source = (read_json(file) or {}).get("chat_template")
        if source is not None and not isinstance(source, str):
            raise wrong(file, "chat_template", source, "must be text")
        if source:
            return source, file
    file = folder / "tokenizer_config.json"
    source = config.get("chat_template")
    if isinstance(source, list):
        for each in source:
            parts = (each.get("name"), each.get("template")) if isinstance(each, dict) else (0,)
            if not all(isinstance(part, str) for part in parts):
                raise wrong(file, "chat_template", each, "must have a name and a template")
        source = {each["name"]: each["template"] for each in source}.get("default")
    if source is not None and not isinstance(source, str):
        raise wrong(file, "chat_template", source, "must be text, or a list of named templates")
    return source or None, file  # one without a word is none
