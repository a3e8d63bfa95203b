"""GGUF files that are cut, or lie about counts, lengths, types, offsets, names and numbers.

Every file becomes a folder and a model that computes numbers, or one line that says
why not, in a moment, without more memory than the file has and 1 GB. Nothing of it leaves the place
where its folder is made.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import struct
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine.client.templates import chat_template
from engine.client.text.tokenizer_folder import read_folder, try_chat_template
from engine.config import EngineConfig
from engine.core.models.checkpoint import check_folder
from engine.core.models.loader import load_model
from engine.core.models.stored_weights import read_weights
from engine.core.ops import library
from engine.errors import EngineError, UnsupportedModelError, ValidationError
from engine.folder.gguf.derived import derive_folder
from engine.folder.gguf.head import read_head
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.engine.helpers.small_tokenizers import build_mistral
from tests.fuzz.damage import damaged
from tests.fuzz.driver import Finding
from tests.helpers.tiny_model import build_tiny_model

SECONDS = 20.0  # of processor time for one file; they take a hundredth
MEMORY_BYTES = 1 << 30
PEEK = 1024  # a file is cut at each of so many bytes of its head
WORD = re.compile(rb"[a-z_]+(?:\.[a-z_0-9]+)+")  # keys and names of tensors
EXTREMES = (0, 1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1)
EXTREMES_64 = (*EXTREMES, 2**63, 2**64 - 1)
FLOATS = (0.0, -1.0, 1e-45, 1e38, float("nan"), float("inf"), float("-inf"), 0.5)
NAMES = (
    *(b"../../../etc/passwd", b"/etc/passwd", b"blk.99999.attn_q.weight", b"\xff\xfe", b""),
    *(b"output.weight", b"rope_freqs.weight", b"a\0b", b"a\nb", b"blk.0.attn_q.bias", b"x" * 300),
)
BOMBS = (
    b"{% for a in range(10**9) %}{% for b in range(10**9) %}{% endfor %}{% endfor %}",
    b"{{ 'x' * 10**10 }}",
    b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    b"{{ ''.__class__.__mro__[1].__subclasses__() }}",
    b"{% if",
    b"{{ '%999999999d' % 1 }}",
)
LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "partial_rotary_factor": 1.0}
# Whose weights lie in other forms than transformers has them, and whose metadata says more.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_oss": ("MXFP4", {}),
    "gemma3_text": ("Q8_0", {}),
    "qwen2_moe": ("F16", {}),
    "phi3": (
        "Q4_0",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **LONG}},
    ),
    "stablelm": ("F32", {"qk_layernorm": True}),
    "ministral3": ("F32", {}),
}


@dataclass
class Site:
    """Good files to begin with, and where the others are written."""

    folder: Path
    files: list[bytes]
    before: set[Path]
    ops: library.Ops = field(default_factory=lambda: library.choose("auto"))
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


@contextlib.contextmanager
def _site() -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}))
        stack.enter_context(patch.object(chat_template, "RENDER_SECONDS", 0.1))
        stack.enter_context(patch.object(chat_template, "COMPILE_SECONDS", 0.2))
        files = []
        for family, kind in (("llama", "F32"), ("qwen2", "Q8_0"), ("qwen3", "Q4_0")):
            original = build_tiny_model(folder / family, family)
            files.append(write_gguf(original, folder / "good.gguf", kind).read_bytes())
        for family, (kind, fields) in OTHERS.items():
            original = build_family(folder / family, family, **fields)
            files.append(write_gguf(original, folder / "good.gguf", kind).read_bytes())
        original = build_family(folder / "pieces", "llama", vocab_size=512)
        build_mistral(original)
        files.append(write_gguf(original, folder / "good.gguf", "F16").read_bytes())
        (folder / "files").mkdir()
        yield Site(folder, files, set(folder.iterdir()) | {folder / "cache"})


def _lie(rng: random.Random, content: bytearray, head: int) -> None:
    """Change one word of the head so that it says something else."""
    places = [found.end() for found in WORD.finditer(bytes(content[:head]))]
    place = rng.choice(places) + rng.choice((0, 0, 4, 4, 8, 12, 16, 20, 24, 28))
    if rng.random() < 0.1:
        place = rng.choice((4, 8, 16))  # version and counts
    if rng.random() < 0.1:
        place = rng.randrange(head)
    match rng.randrange(6):
        case 0 | 1:
            content[place : place + 4] = struct.pack("<I", rng.choice(EXTREMES[:10]))
        case 2 | 3:
            content[place : place + 8] = struct.pack("<Q", rng.choice(EXTREMES_64))
        case 4:
            content[place : place + 4] = struct.pack("<f", rng.choice(FLOATS))
        case 5:
            content[place : place + 4] = struct.pack("<I", rng.randrange(45))


def _rename(rng: random.Random, content: bytearray, head: int) -> None:
    """Give a key, a tensor or a template other words, of the length that they have."""
    found = rng.choice(list(WORD.finditer(bytes(content[:head]))))
    template = content.find(b"{%")
    start = template if rng.random() < 0.3 and template > 0 else found.start()
    (length,) = struct.unpack("<Q", content[start - 8 : start]) if start >= 8 else (0,)
    if 0 < length < 1 << 20:
        word = rng.choice(BOMBS if start == template else NAMES)
        content[start - 8 : start + length] = struct.pack("<Q", len(word)) + word


def _made(site: Site, rng: random.Random, number: int) -> bytes:
    good = site.files[number % len(site.files)]
    head = _head_length(site, good)
    cuts = head // PEEK + 2
    if number < cuts * len(site.files):
        return good[: number // len(site.files) * PEEK]
    content = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        rng.choice((_lie, _lie, _lie, _rename))(rng, content, head)
    if rng.random() < 0.2:
        content[:head] = damaged(rng, bytes(content[:head]))
    if rng.random() < 0.2:  # weights of any bits
        for _ in range(20):
            place = rng.randrange(head, max(head + 1, len(content)))
            content[place : place + 4] = rng.randbytes(4)
    return bytes(content)


def _head_length(site: Site, content: bytes) -> int:
    file = site.folder / "good.gguf"
    file.write_bytes(content)
    return min(tensor.start for tensor in read_head(file).tensors.values())


def _try(site: Site, rng: random.Random, content: bytes) -> None:
    """Raises `Finding` for anything but a model or one line."""
    file = site.folder / "files" / "a.gguf"
    file.write_bytes(content)
    started = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        _load(site, rng, file)
        site.count("served")
    except (UnsupportedModelError, ValidationError, EngineError) as error:
        line = str(error)
        site.count("refused")
        if "\n" in line or not ("a.gguf" in line or "a-" in line):
            raise Finding(f"{line!r} names no file", content) from None
    except Exception as error:
        where = traceback.format_exc(limit=-3)
        raise Finding(f"{error!r} was raised: {where}", content) from error
    taken = time.process_time() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10
    if taken > SECONDS:
        raise Finding(f"took {taken:.1f} s", content)
    if grown > len(content) + MEMORY_BYTES:
        raise Finding(f"took {grown} bytes", content)
    if left := {*site.folder.iterdir()} - site.before - {site.folder / "files"}:
        raise Finding(f"left {left}", content)


def _load(site: Site, rng: random.Random, file: Path) -> None:
    folder = derive_folder(file)
    read_folder(folder)
    checkpoint = check_folder(folder)
    if rng.random() < 0.02 or b"10**" in file.read_bytes():
        try_chat_template(folder)
    if rng.random() < 0.2:
        config = EngineConfig(model=str(folder), address="", served_model_name="a")
        load_model(config, site.ops)
    else:
        for _, weight in read_weights(checkpoint):
            assert weight.numel()


def run(seconds: float, seed: int) -> str:
    """Try files for so long; raises AssertionError with seed and bytes. Returns figures."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    number = 0
    with _site() as site:
        try:
            while time.monotonic() < deadline:
                _try(site, rng, _made(site, rng, number))
                number += 1
        except Finding as finding:
            raise AssertionError(f"seed {seed}, file {number}: {finding}") from finding
        return f"gguf: {number} files, {site.counts}"
