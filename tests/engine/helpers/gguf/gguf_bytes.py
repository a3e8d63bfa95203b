"""Heads of GGUF files, byte by byte, so that each may lie."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

U32, I32, F32, BOOL, TEXT, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
F32_TENSOR = 0


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def u32(name: str, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def string(name: str, value: str | bytes) -> bytes:
    return key(name, TEXT, text(value))


def array(name: str, kind: int, count: int, content: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", kind, count) + content)


def tensor(name: str, sizes: list[int], offset: int, kind: int = F32_TENSOR) -> bytes:
    """An entry; `sizes` are in the order of the file, that of a row first."""
    entry = text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
    return entry + struct.pack("<IQ", kind, offset)


def gguf_file(
    file: Path,
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    **lies: Any,
) -> Path:
    """Write a file; `lies` are another magic, version, num_tensors or num_keys."""
    head = lies.get("magic", b"GGUF") + struct.pack(
        "<IQQ",
        lies.get("version", 3),
        lies.get("num_tensors", len(tensors)),
        lies.get("num_keys", len(keys)),
    )
    head += b"".join(keys) + b"".join(tensors)
    alignment = lies.get("alignment", 32)
    file.write_bytes(head + bytes(-len(head) % alignment) + data)
    return file
