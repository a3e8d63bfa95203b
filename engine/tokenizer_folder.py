"""`read_folder`: what the files of a checkpoint say about its tokenizer.

Checkpoints have said it in several ways over the years; whoever uses the result need not know them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from engine.chat_template import ChatTemplate
from engine.errors import ValidationError

SPECIAL_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """The tokenizer of a checkpoint, as its folder has it."""

    config: dict[str, Any]  # tokenizer_config.json
    special_tokens: dict[str, str]  # name → text
    backend: tokenizers.Tokenizer
    chat_template: str | None  # source


def read_folder(folder: Path) -> TokenizerFolder:
    """Raises `ValidationError` for a folder without a tokenizer that we can read."""
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _read_special_tokens(folder, config)
    path = folder / "tokenizer.json"
    if path.is_file():
        backend = tokenizers.Tokenizer.from_file(str(path))
        backend.no_truncation()
        backend.no_padding()
    else:
        backend = _load_byte_level_bpe(folder)
        special_tokens.setdefault("eos_token", "<|endoftext|>")
    _add_missing_tokens(backend, config, special_tokens.values())
    return TokenizerFolder(config, special_tokens, backend, _read_chat_template(folder, config))


def try_chat_template(folder: Path) -> None:
    """Compile the template of a checkpoint, if it has one, and render some conversations with it.

    Raises `ValidationError`, which names the file, for one that is broken or leaves its bounds.
    """
    config = _read_json(folder / "tokenizer_config.json")
    source = _read_chat_template(folder, config)
    if source is None:
        return
    template = ChatTemplate(source)
    try:
        template.try_out()
    except ValidationError as error:
        names = ("chat_template.jinja", "tokenizer_config.json")
        file = next(path for name in names if (path := folder / name).is_file())
        raise ValidationError(f"{file}: {error}", "chat_template", str(file)) from None
    finally:
        template.close()


def _read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    older = _read_json(folder / "special_tokens_map.json")
    found: dict[str, str] = {}
    for name in SPECIAL_NAMES:
        token = config.get(name, older.get(name))
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            found[name] = text
    return found


def _load_byte_level_bpe(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2 and its kin were published before tokenizer.json was."""
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not vocabulary.is_file() or not merges.is_file():
        problem = f"{folder} has no tokenizer.json"
        raise ValidationError(problem, "tokenizer", str(folder))
    backend = tokenizers.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


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


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {each["name"]: each["template"] for each in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        problem = f"{path} is not valid JSON: {error}"
        raise ValidationError(problem, "tokenizer", str(path)) from None
    return content if isinstance(content, dict) else {}
