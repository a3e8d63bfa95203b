import stat
from pathlib import Path

import pytest

from engine.far.keys import KeysError, make_keys, read_keys, trust


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_pair_is_made_once_and_its_secret_is_its_owner_s(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "keys"
    key = make_keys(folder)
    assert make_keys(folder) == key == (folder / "public").read_text().strip()
    assert mode(folder / "secret") == 0o600 and mode(folder) & 0o077 == 0
    assert make_keys(tmp_path / "b") != key
    keys = read_keys(folder)
    assert keys.public.hex() == key and keys.trusted == {}
    assert keys.secret.hex() not in repr(keys)


def test_who_is_trusted_has_a_name(tmp_path: Path) -> None:
    ours, theirs = make_keys(tmp_path / "ours"), make_keys(tmp_path / "theirs")
    trust(tmp_path / "ours", "gpu-1", f" {theirs.upper()}\n")
    for name in (".swp", ".gpu-1.swp", "gpu-1~", "#gpu-1#", "gpu-1.bak", "gpu-1.orig"):
        (tmp_path / "ours" / "trusted" / name).write_text("9" * 64)  # as editors leave them
    keys = read_keys(tmp_path / "ours")
    assert keys.trusted == {bytes.fromhex(theirs): "gpu-1"}
    assert keys.core.hex() == theirs != ours
    with pytest.raises(KeysError, match="is there already"):
        trust(tmp_path / "ours", "gpu-1", ours)


@pytest.mark.parametrize(
    ("name", "key", "problem"),
    [
        ("../up", "0" * 64, "is no name"),
        (".hidden", "0" * 64, "is no name"),
        ("gpu.bak", "0" * 64, "is no name"),
        ("a", "0" * 63, "64 hexadecimal digits"),
        ("a", "g" * 64, "64 hexadecimal digits"),
    ],
)
def test_what_is_no_name_and_no_key_is_refused(
    name: str, key: str, problem: str, tmp_path: Path
) -> None:
    make_keys(tmp_path)
    with pytest.raises(KeysError, match=problem):
        trust(tmp_path, name, key)


def spoil(folder: Path, way: str) -> None:
    secret, trusted = folder / "secret", folder / "trusted"
    match way:
        case "no folder" | "no secret":
            secret.unlink()
        case "open to others":
            secret.chmod(0o640)
        case "no key":
            secret.write_text("hello")
        case "a stranger's file":
            (trusted / "x").write_bytes(b"\xff" * 5000)
        case "no trusted":
            trusted.rmdir()


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        ("no secret", "holds no keys: `parley core keys"),
        ("open to others", "can be read by others: chmod 600"),
        ("no key", "holds no key: 64 hexadecimal digits"),
        ("a stranger's file", "x holds no key"),
        ("no trusted", "holds no keys"),
    ],
)
def test_a_folder_that_is_not_as_it_must_be_is_refused_in_one_line(
    way: str, problem: str, tmp_path: Path
) -> None:
    make_keys(tmp_path)
    spoil(tmp_path, way)
    with pytest.raises(KeysError, match=problem) as refusal:
        read_keys(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_client_has_one_core(tmp_path: Path) -> None:
    make_keys(tmp_path)
    for name, key in (("a", "1" * 64), ("b", "2" * 64)):
        trust(tmp_path, name, key)
    with pytest.raises(KeysError, match="a client trusts one core, and not 2"):
        _ = read_keys(tmp_path).core


def test_trust_needs_keys_of_one_s_own(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="holds no keys"):
        trust(tmp_path, "a", "0" * 64)
