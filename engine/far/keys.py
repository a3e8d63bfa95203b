"""The keys by which a core and its clients know each other over a network: a folder on either side.

    secret         our own half, in hex, mode 0600
    public         the other half, for the other side
    trusted/NAME   the public keys of those who may come; of a client, that of its one core

They are keys of CurveZMQ (Curve25519). Whoever reads `secret` is whom it stands for.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

SECRET, PUBLIC, TRUSTED = "secret", "public", "trusted"
KEY = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LEFT_BEHIND = (".bak", ".old", ".orig", ".save", ".swp", ".tmp")  # by editors, copies and packages
MAX_FILE_BYTES = 1024
MAX_TRUSTED = 1000


class KeysError(ValueError):
    """A folder of keys is not as it must be: one line for the operator."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What a folder holds; keys are 32 bytes, `trusted` has the name of each."""

    secret: bytes
    public: bytes
    trusted: Mapping[bytes, str]

    def __repr__(self) -> str:
        return f"Keys(public={self.public.hex()})"  # a traceback may be logged

    @property
    def core(self) -> bytes:
        """The core's public key, in a client's folder. Raises `KeysError`."""
        if len(self.trusted) != 1:
            raise KeysError(f"a client trusts one core, and not {len(self.trusted)}: see {TRUSTED}")
        return next(iter(self.trusted))


def make_keys(folder: Path) -> str:
    """Make a pair unless the folder has one already; its public key. Raises `KeysError`."""
    try:
        (folder / TRUSTED).mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / SECRET).exists():
            folder.chmod(0o700)
            _, secret = zmq.curve_keypair()
            _write_new(folder / SECRET, z85.decode(secret).hex(), 0o600)
        public = _public_of(_read_secret(folder / SECRET))
        if not (folder / PUBLIC).exists():
            _write_new(folder / PUBLIC, public.hex(), 0o644)
    except OSError as error:
        raise KeysError(f"{error.filename}: {error.strerror}") from None
    return public.hex()


def trust(folder: Path, name: str, key: str) -> None:
    """Let the other side with this public key come, under a name. Raises `KeysError`."""
    if not _is_name(name):
        raise KeysError(f"{name!r} is no name: letters, digits, '.', '_' and '-', and no backup's")
    key = key.strip().lower()
    if not KEY.fullmatch(key):
        raise KeysError("a public key has 64 hexadecimal digits")
    if not (folder / TRUSTED).is_dir():
        raise KeysError(f"{folder} holds no keys: `parley core keys {folder}` makes them")
    try:
        _write_new(folder / TRUSTED / name, key, 0o644)
    except FileExistsError:
        raise KeysError(f"{folder / TRUSTED / name} is there already: remove it first") from None
    except OSError as error:
        raise KeysError(f"{error.filename}: {error.strerror}") from None


def read_keys(folder: Path) -> Keys:
    """All of a folder. Raises `KeysError`."""
    try:
        secret = _read_secret(folder / SECRET)
        trusted = read_trusted(folder)
    except FileNotFoundError:
        problem = f"{folder} holds no keys: `parley core keys {folder}` makes them"
        raise KeysError(problem) from None
    except OSError as error:
        raise KeysError(f"{error.filename}: {error.strerror}") from None
    return Keys(secret, _public_of(secret), trusted)


def read_trusted(folder: Path) -> dict[bytes, str]:
    """The public keys of the other side, with their names. Raises OSError and `KeysError`."""
    found: dict[bytes, str] = {}
    for path in _trusted_files(folder):
        if len(found) == MAX_TRUSTED:
            raise KeysError(f"{path.parent} holds more than {MAX_TRUSTED} keys")
        found.setdefault(_read_key(path), path.name)
    return found


def stamp_of_trusted(folder: Path) -> tuple[int, ...]:
    """Another one when a key has come, gone, or been written over. Raises OSError."""
    files = folder / TRUSTED
    found = [files.stat(), *(path.stat() for path in _trusted_files(folder))]
    return tuple(part for one in found for part in (one.st_ino, one.st_mtime_ns, one.st_size))


def _is_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None and not name.endswith(LEFT_BEHIND)


def _trusted_files(folder: Path) -> list[Path]:
    """Those whose name is one: what an editor leaves beside a key is none."""
    return sorted(path for path in (folder / TRUSTED).iterdir() if _is_name(path.name))


def _read_secret(path: Path) -> bytes:
    """Raises OSError, and `KeysError` for a file that others may read."""
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeysError(f"{path} can be read by others: chmod 600 {path}")
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES).decode("latin-1").strip().lower()
    if not KEY.fullmatch(text):
        raise KeysError(f"{path} holds no key: 64 hexadecimal digits")
    return bytes.fromhex(text)


def _public_of(secret: bytes) -> bytes:
    public: bytes = z85.decode(zmq.curve_public(z85.encode(secret)))
    return public


def _write_new(path: Path, key: str, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, mode), "w") as file:
        file.write(key + "\n")
