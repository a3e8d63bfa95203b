import array as arrays
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UnsupportedModelError
from engine.folder.gguf import head
from engine.folder.gguf.head import read_head
from tests.engine.helpers.gguf.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    TEXT,
    U64,
    array,
    gguf_file,
    key,
    string,
    tensor,
    text,
    u32,
)

ROWS = tensor("rows", [8, 2], 0)  # 64 bytes
LONGEST = struct.pack("<Q", 1 << 63)


def test_values_and_tensors_are_read(tmp_path: Path) -> None:
    keys = [
        string("general.architecture", "llama"),
        u32("a.count", 7),
        key("a.share", F32, struct.pack("<f", 0.5)),
        key("a.flag", BOOL, b"\1"),
        array("a.texts", TEXT, 2, text("é") + text("")),
        array("a.numbers", F32, 2, struct.pack("<2f", 1, 2)),
    ]
    half = tensor("half", [32], 64, kind=2)
    file = gguf_file(tmp_path / "a.gguf", keys, [ROWS, half], bytes(64 + 18))
    found = read_head(file)
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["a.count"] == 7
    assert found.metadata["a.share"] == 0.5
    assert found.metadata["a.flag"] is True
    assert found.metadata["a.texts"] == ["é", ""]
    numbers = found.metadata["a.numbers"]
    assert isinstance(numbers, arrays.array) and list(numbers) == [1, 2]
    rows, other = found.tensors["rows"], found.tensors["half"]
    assert (rows.shape, rows.type.name, rows.num_bytes) == ((2, 8), "F32", 64)
    assert (other.shape, other.type.name, other.num_bytes) == ((32,), "Q4_0", 18)
    assert (rows.start % 32, other.start) == (0, rows.start + 64)
    assert other.start + other.num_bytes == file.stat().st_size


def test_arrays_may_be_skipped(tmp_path: Path) -> None:
    keys = [array("t", TEXT, 2, text("a") + text("b")), array("n", F32, 1, bytes(4)), u32("x", 3)]
    found = read_head(gguf_file(tmp_path / "a.gguf", keys, [ROWS], bytes(64)), with_arrays=False)
    assert found.metadata == {"x": 3}
    assert found.tensors.keys() == {"rows"}


def test_alignment_is_the_files(tmp_path: Path) -> None:
    lies: Any = {"alignment": 256}
    file = gguf_file(
        tmp_path / "a.gguf", [u32("general.alignment", 256)], [ROWS], bytes(64), **lies
    )
    assert read_head(file).tensors["rows"].start == 256


CASES: dict[str, tuple[list[bytes], list[bytes], dict[str, Any], str]] = {
    "another format": ([], [], {"magic": b"GGML"}, "is no GGUF file"),
    "the first version": ([], [], {"version": 1}, "is of version 1"),
    "big-endian": ([], [], {"version": 3 << 24}, "is big-endian"),
    "too many keys": ([], [], {"num_keys": 1 << 63}, "says that it has 9223372036854775808 keys"),
    "too many tensors": ([], [], {"num_tensors": 1 << 40}, "tensors; the most is"),
    "keys that are not there": ([], [], {"num_keys": 3}, "gives '' two values"),
    "a key twice": ([u32("a", 1), u32("a", 1)], [], {}, "gives 'a' two values"),
    "a long key": ([LONGEST], [], {}, "a key says that it has 9223372036854775808 bytes"),
    "a key that is no text": ([key(b"\xff", TEXT, text("x"))], [], {}, "a key is not UTF-8"),
    "a long text": ([key("a", TEXT, LONGEST)], [], {}, "a says that it has 92"),
    "a text that is none": ([string("a", b"\xff")], [], {}, "a is not UTF-8"),
    "a value of no type": ([key("a", 13, b"")], [], {}, "a is of the type 13"),
    "an array of no type": ([array("a", 99, 1, b"")], [], {}, "a is of the type 99"),
    "a flag that is none": ([key("a", BOOL, b"\2")], [], {}, "neither true nor false"),
    "arrays in arrays": ([array("a", ARRAY, 1, b"")], [], {}, "arrays of arrays"),
    "a long array": ([array("a", U64, 1 << 63, b"")], [], {}, "is cut: a would end at byte"),
    "many texts": ([array("a", TEXT, 1 << 63, b"")], [], {}, "says that it holds 92"),
    "an array's long text": ([array("a", TEXT, 1, LONGEST)], [], {}, "is cut: a would end"),
    "an alignment of 3": ([u32("general.alignment", 3)], [], {}, "is 3, no power of two"),
    "an alignment of 0": ([u32("general.alignment", 0)], [], {}, "general.alignment is 0"),
    "an alignment of text": ([string("general.alignment", "8")], [], {}, "alignment is '8'"),
    "a tensor twice": ([], [ROWS, ROWS], {}, "holds 'rows' twice"),
    "no dimension": ([], [tensor("a", [], 0)], {}, "a has 0 dimensions"),
    "five dimensions": ([], [tensor("a", [1] * 5, 0)], {}, "a has 5 dimensions"),
    "a size of 0": ([], [tensor("a", [0, 2], 0)], {}, "a has the shape"),
    "a size that overflows": ([], [tensor("a", [1 << 32, 1 << 31], 0)], {}, "a has the shape"),
    "a tensor of no type": ([], [tensor("a", [8], 0, kind=4)], {}, "a is of the type 4"),
    "half a block": ([], [tensor("a", [33], 0, kind=2)], {}, "a has rows of 33, no whole blocks"),
    "a long name": ([], [LONGEST], {}, "the name of a tensor says"),
    "an odd offset": ([], [tensor("a", [1], 4)], {}, "a begins at byte"),
    "beyond the end": ([], [tensor("a", [8, 3], 0)], {}, "is cut: a ends at byte"),
    "far beyond the end": ([], [tensor("a", [8], 1 << 62)], {}, "is cut: a ends at byte"),
    "one over another": ([], [ROWS, tensor("b", [8], 32)], {}, "b overlaps rows"),
}


@pytest.mark.parametrize("name", CASES)
def test_fault_is_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    keys, tensors, lies, says = CASES[name]
    file = gguf_file(tmp_path / "a.gguf", keys, tensors, bytes(64), **lies)
    with pytest.raises(UnsupportedModelError) as refused:
        read_head(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_that_is_cut_anywhere_says_so(tmp_path: Path) -> None:
    keys = [string("a", "x"), u32("b", 1), array("c", TEXT, 2, text("one") + text("two"))]
    whole = gguf_file(tmp_path / "a.gguf", keys, [ROWS], bytes(64)).read_bytes()
    file = tmp_path / "cut.gguf"
    for length in range(1, len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(UnsupportedModelError, match=r"is cut|is no GGUF file"):
            read_head(file)


def test_head_is_read_in_pieces_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [array("c", TEXT, 100, text("word") * 100), u32("b", 1)]
    file = gguf_file(tmp_path / "a.gguf", keys, [ROWS], bytes(64))
    for pieces in ((64, 128, 4096), (24, 1250, 1400), (2000, 2001)):
        monkeypatch.setattr(head, "READ_BYTES", pieces)
        assert read_head(file).metadata["b"] == 1
    monkeypatch.setattr(head, "READ_BYTES", (64, 1000))
    with pytest.raises(UnsupportedModelError, match="its head has more than 1000 bytes"):
        read_head(file)


def test_no_more_texts_are_read_than_a_vocabulary_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_TEXTS", 3)
    keys = [array(name, TEXT, 2, text("a") * 2) for name in "ab"]
    with pytest.raises(UnsupportedModelError, match="b holds 2 texts, which"):
        read_head(gguf_file(tmp_path / "a.gguf", keys))


def test_who_made_it_may_be_in_any_encoding(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "a.gguf", [string("general.author", b"Andr\xe9")])
    assert read_head(file).metadata["general.author"] == "Andr\ufffd"


@pytest.mark.parametrize("make", [lambda file: file.mkdir(), lambda file: None])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "a.gguf")
    with pytest.raises(UnsupportedModelError, match=r"is a folder|is missing"):
        read_head(tmp_path / "a.gguf")


def test_large_vocabulary_is_read_in_a_second(tmp_path: Path) -> None:
    words = b"".join(text(f"token{number}") for number in range(300_000))
    keys = [array("tokens", TEXT, 300_000, words), array("merges", TEXT, 300_000, words)]
    file = gguf_file(tmp_path / "a.gguf", keys)
    started = time.process_time()
    tokens = read_head(file).metadata["tokens"]
    assert time.process_time() - started < 1
    assert isinstance(tokens, list) and tokens[-1] == "token299999"
