"""`derive_folder`: the small folder that stands for a GGUF file wherever a model's folder is read.

It holds config.json, generation_config.json, tokenizer.json and tokenizer_config.json, made of the
file's metadata, and `gguf.files`, which says where the weights are. So tokenizer, templates, checks
and console know of no other format than one; only what reads weights asks `read_link`.

The folders are a cache. Each is named after the file, which is how a line about one of its files
tells where it is from, and by a digest of path, size and time, so that a changed file gets another
one. It may be deleted whenever no server uses it.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError, check_text
from engine.folder.gguf.config import make_config, make_generation_config
from engine.folder.gguf.link import LINK, Stamp, cache_folder, read_stamps, stamp_of
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.parts import part_files, read_parts
from engine.folder.gguf.vocabulary.tokenizer import make_tokenizer
from engine.folder.model_files import reading

MADE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", LINK)
FORMAT = 1  # of what is made: a change of it makes all folders again
DIGITS = 16
MAX_NAME = 100  # characters of a file's name


def derive_folder(file: Path) -> Path:
    """The folder that stands for a file, or for all parts of the model that it is one of.

    Raises `UnsupportedModelError` for a file that cannot be served, with one line for a person.
    """
    files = tuple(each.absolute() for each in part_files(file))
    stamps = {each: stamp_of(each) for each in files}
    cache = cache_folder()
    folder = cache / _name(stamps)
    if cache.is_dir():
        _check_owner(cache)
    if _fits(folder, stamps):
        return folder
    contents = _make(files, stamps)
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder, contents)
    except OSError as error:
        problem = f"cannot be written ({error.strerror}); XDG_CACHE_HOME names another place"
        raise UnsupportedModelError(f"{cache}: {problem}") from None
    return folder


def _fits(folder: Path, stamps: Mapping[Path, Stamp]) -> bool:
    try:
        return all((folder / name).stat().st_size for name in MADE) and (
            dict(read_stamps(folder).stamps) == dict(stamps)
        )
    except (OSError, UnsupportedModelError):
        return False


def _make(files: Sequence[Path], stamps: Mapping[Path, Stamp]) -> dict[str, str]:
    """The text of each file of the folder, by name."""
    model = read_parts(tuple(files))
    metadata = Metadata(model.file, model.metadata)
    config = make_config(model, metadata)
    backend, tokenizer_config = make_tokenizer(metadata, config["vocab_size"])
    with reading(model.file, "tokenizer.ggml"):
        tokenizer = backend.to_str()
    link = {"files": [[str(file), *stamp] for file, stamp in stamps.items()]}
    made: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": make_generation_config(metadata, config),
        "tokenizer_config.json": tokenizer_config,
        LINK: link,
    }
    with reading(model.file):
        for file in files:
            check_text("its path", str(file))
        texts = {name: json.dumps(content, indent=2) for name, content in made.items()}
    return texts | {"tokenizer.json": tokenizer}


def _write(folder: Path, contents: Mapping[str, str]) -> None:
    """All or nothing, also beside others who write the same."""
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))  # 0700
    try:
        for name, text in contents.items():
            (made / name).write_text(text, encoding="utf-8")
        if folder.exists():  # it did not fit: it is damaged
            old = made / ".old"
            with contextlib.suppress(FileNotFoundError):
                folder.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Somebody has just written the same.
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_owner(cache: Path) -> None:
    status = cache.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        problem = "others may write there; XDG_CACHE_HOME names another place"
        raise UnsupportedModelError(f"{cache}: {problem}")


def _name(stamps: Mapping[Path, Stamp]) -> str:
    text = json.dumps([FORMAT, [[str(file), *stamp] for file, stamp in stamps.items()]])
    own = re.sub(r"[^\w.-]", "_", next(iter(stamps)).stem, flags=re.ASCII)[:MAX_NAME]
    return f"{own}-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"
