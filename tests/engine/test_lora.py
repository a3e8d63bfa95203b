"""`hash_adapter`: what is known of an adapter's files before an engine reads them."""

import os
from pathlib import Path

import pytest

from engine.core.models.lora.adapter_folder import read_adapter
from engine.lora import ADAPTER_FILES, MAX_ADAPTER_BYTES, hash_adapter
from tests.engine.helpers.lora.adapters import build_adapter
from tests.helpers.tiny_model import build_tiny_model


def test_the_hash_is_the_one_that_the_engine_finds(tmp_path: Path) -> None:
    folder = build_adapter(tmp_path / "adapter", build_tiny_model(tmp_path / "model"))
    shapes = {"model.layers.0.self_attn.q_proj": (64, 64)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.core.models.lora.adapter_folder._fit", lambda *_: {})
        weights = read_adapter(folder, shapes, max_rank=512)
    assert hash_adapter(folder) == weights.content_hash


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_a_file_that_is_missing_or_a_link_has_none(tmp_path: Path, name: str) -> None:
    for file in ADAPTER_FILES:
        (tmp_path / file).write_text("content")
    whole = hash_adapter(tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        hash_adapter(tmp_path)
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        hash_adapter(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="no regular file"):
        hash_adapter(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).write_text("other content")
    assert hash_adapter(tmp_path) != whole


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_a_file_that_is_too_long_is_refused_before_it_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hashlib.sha256", HashOfFewBytes)
    for file in ADAPTER_FILES:
        (tmp_path / file).write_text("content")
    os.truncate(tmp_path / name, MAX_ADAPTER_BYTES[name] + 1)  # a hole: it takes no room
    with pytest.raises(OSError, match=f"has {MAX_ADAPTER_BYTES[name] + 1} bytes") as caught:
        hash_adapter(tmp_path)
    assert caught.value.filename == str(tmp_path / name)


class HashOfFewBytes:
    def update(self, piece: bytes) -> None:
        assert len(piece) <= 8
