"""Reading the files of a model's folder: each fault becomes one line that names the file.

The folder comes from others. So only regular files are opened (a pipe would never end), no file is
read that is longer than such a file can be, and `reading` turns every error of a library over one
into an `UnsupportedModelError`.
"""

import json
import logging
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import UnsupportedModelError, check_text, refuse

logger = logging.getLogger(__name__)

MAX_TEXT_BYTES = 64 << 20  # the index of the largest models has 10 MB
MAX_TOKENIZER_BYTES = 512 << 20  # the largest vocabularies take 40 MB
MAX_DEPTH = 64  # of lists and objects; a configuration has 5
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The words of these say nothing without their name: `KeyError('evil')`.
_TERSE = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError)


@contextmanager
def reading(file: Path, field: str = "") -> Iterator[None]:
    """Raise `UnsupportedModelError`, naming this file, for every error within."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except BaseException as error:
        name = type(error).__name__  # torch is not known here
        # A panic of `tokenizers` is no Exception; what else is none is not the file's fault.
        is_exit = not isinstance(error, Exception) and name != "PanicException"
        if is_exit or name == "OutOfMemoryError":  # of a GPU: the core says so
            raise
        logger.debug("cannot read %s", file, exc_info=True)
        where = f"{file}: {field}" if field else f"{file}"
        raise UnsupportedModelError(f"{where}: {describe(error)}") from None


def describe(error: BaseException) -> str:
    """What an error of a library says, in words that stand for themselves."""
    if isinstance(error, RecursionError):
        return "is nested too deep"
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    text, name = str(error).strip(), type(error).__name__
    return f"{name}: {text}" if isinstance(error, _TERSE) and text else text or name


def wrong(file: Path, field: str, value: object, problem: str) -> UnsupportedModelError:
    """The refusal of one field: `config.json: vocab_size must be …, got -1`."""
    return UnsupportedModelError(f"{file}: {refuse(field, value, problem)}")


def exists(file: Path, max_bytes: int | None = None) -> bool:
    """Whether there is such a file to read. Raises `UnsupportedModelError` if it is no good one."""
    try:
        status = file.stat()
    except FileNotFoundError:
        if file.is_symlink():
            raise UnsupportedModelError(f"{file}: is a link to a file that is missing") from None
        return False
    except OSError as error:
        raise UnsupportedModelError(f"{file}: cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        raise UnsupportedModelError(f"{file}: is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise UnsupportedModelError(f"{file}: is a device or a pipe, not a file")
    if not status.st_size:
        raise UnsupportedModelError(f"{file}: is empty")
    if max_bytes is not None and status.st_size > max_bytes:
        problem = f"has {status.st_size} bytes, such a file has at most {max_bytes}"
        raise UnsupportedModelError(f"{file}: {problem}")
    return True


def read_text(file: Path) -> str | None:
    """The text of a file; None if there is none."""
    if not exists(file, MAX_TEXT_BYTES):
        return None
    with open_file(file) as stream:
        return decode(file, stream.read())


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a file, without NaN or half characters; None if there is no such file."""
    text = read_text(file)
    if text is None:
        return None
    content = parse_object(file, text)
    _check_values(file, content)
    return content


def open_file(file: Path) -> BinaryIO:
    """A file that `exists`, for reading bytes."""
    try:
        return file.open("rb")
    except OSError as error:
        raise UnsupportedModelError(f"{file}: cannot be read: {error.strerror}") from None


def decode(file: Path, content: bytes) -> str:
    """UTF-8 without a byte order mark, as transformers and `tokenizers` read it."""
    if content.startswith(BYTE_ORDER_MARK):
        raise UnsupportedModelError(f"{file}: begins with a byte order mark; save it without one")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedModelError(f"{file}: is not UTF-8 at byte {error.start}") from None


def parse_object(file: Path, text: str) -> dict[str, Any]:
    """A JSON object none of whose names has two values."""

    def unite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        united = dict(pairs)
        if len(united) < len(pairs):
            for name, value in pairs:
                if united[name] != value:
                    raise UnsupportedModelError(f"{file}: gives {name!r} two values")
        return united

    try:
        content = json.loads(text, object_pairs_hook=unite)
    except UnsupportedModelError:
        raise
    except RecursionError:
        raise UnsupportedModelError(f"{file}: is nested too deep") from None
    except ValueError as error:
        raise UnsupportedModelError(f"{file}: is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{file}: must hold an object, not {type(content).__name__}")
    return content


def _check_values(file: Path, content: dict[str, Any]) -> None:
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise UnsupportedModelError(f"{file}: {place.split('.')[0]} is nested too deep")
        if isinstance(value, dict):
            dot = "." if place else ""
            waiting += [(f"{place}{dot}{name}", each, depth + 1) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{place}[{i}]", each, depth + 1) for i, each in enumerate(value)]
        elif isinstance(value, float) and value != value:
            raise UnsupportedModelError(f"{file}: {place} is NaN, not a number")
        elif isinstance(value, str) and not value.isascii():
            with reading(file):
                check_text(place, value)
