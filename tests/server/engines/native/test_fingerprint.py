"""`model_fingerprint`: the same for the same model, wherever it lies."""

import shutil
from pathlib import Path

import pytest

from engine.folder.gguf.derived import derive_folder
from server.engines.native import fingerprint
from server.engines.native.fingerprint import model_fingerprint
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.helpers.tiny_model import build_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "model.safetensors").write_bytes(bytes(range(200)))
    return folder


def test_a_copy_has_the_same_and_its_description_does_not_count(folder: Path) -> None:
    copy = shutil.copytree(folder, folder.parent / "copy")
    (copy / "README.md").write_text("a model")
    assert model_fingerprint(copy) == model_fingerprint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("change", [b"", b"x"])
def test_other_contents_have_another(
    folder: Path, name: str, change: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 100)
    monkeypatch.setattr(fingerprint, "PIECE_BYTES", 50)
    before = model_fingerprint(folder)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + change)
    assert model_fingerprint(folder) != before


def test_a_gguf_file_counts_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = write_gguf(build_tiny_model(tmp_path / "tiny"), tmp_path / "tiny.gguf")
    before = model_fingerprint(derive_folder(file))
    (tmp_path / "other").mkdir()
    moved = Path(shutil.move(file, tmp_path / "other" / "tiny.gguf"))
    assert model_fingerprint(derive_folder(moved)) == before
    content = bytearray(moved.read_bytes())
    content[-1] ^= 1
    moved.write_bytes(content)
    assert model_fingerprint(derive_folder(moved)) != before
