"""The hub's cache: which commit, which files, and which names."""

from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from engine.client.download import HUB_ID, QUANTIZATION
from engine.folder.caches.found import Found
from engine.folder.caches.hugging_face import cache_folder, hugging_face_models
from tests.engine.helpers.gguf.cache_folders import add_to_hub


@pytest.fixture
def hub(home: Path) -> Path:
    return home / ".cache" / "huggingface" / "hub"


def found_in_hub() -> dict[str, Found]:
    notes: list[str] = []
    models = {found.name: found for found in hugging_face_models(notes)}
    assert notes == []
    return models


def test_the_cache_is_as_huggingface_hub_reads_it(hub: Path, tiny: Path) -> None:
    add_to_hub(hub, "org/tiny", *tiny.iterdir())
    (repository,) = scan_cache_dir(hub).repos
    assert list(found_in_hub()) == [repository.repo_id]


def test_places_are_those_of_huggingface_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == home / ".cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert cache_folder() == home / "xdg/huggingface/hub"
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert cache_folder() == home / "hf/hub"
    monkeypatch.setenv("HF_HUB_CACHE", "$HF_HOME/other")
    assert cache_folder() == home / "hf/other"


def test_names_of_gguf_files_are_taken_after_a_colon(
    hub: Path, tiny_gguf: Path, tiny_parts: list[Path]
) -> None:
    snapshot = add_to_hub(hub, "org/tiny-GGUF", tiny_gguf)
    add_to_hub(hub, "org/tiny-GGUF", *tiny_parts, under="F16")
    models = found_in_hub()
    assert list(models) == ["org/tiny-GGUF:tiny-Q8_0", "org/tiny-GGUF:tiny-F16"]
    assert [len(found.gguf) for found in models.values()] == [1, len(tiny_parts)]
    for name, found in models.items():
        repository, _, file = name.partition(":")
        assert HUB_ID.fullmatch(repository)
        assert QUANTIZATION.fullmatch(file)
        assert found.problem is None
    (snapshot / "a b.gguf").symlink_to("tiny-Q8_0.gguf")
    problem = found_in_hub()["org/tiny-GGUF:a b"].problem
    assert problem == "its file has a name that --model does not take"


def test_parts_that_are_not_all_here_are_no_model(hub: Path, tiny_parts: list[Path]) -> None:
    add_to_hub(hub, "org/tiny-GGUF", *tiny_parts[1:])
    (found,) = found_in_hub().values()
    assert found.problem == f"it is in {len(tiny_parts)} parts, which are not all here"


@pytest.mark.parametrize("ref", [None, "", "../../../x", "f" * 40, "\x00", "main"])
def test_a_commit_that_is_not_here_is_no_model(hub: Path, tiny: Path, ref: str | None) -> None:
    add_to_hub(hub, "org/tiny", *tiny.iterdir())
    main = hub / "models--org--tiny" / "refs" / "main"
    if ref is None:
        main.unlink()
    else:
        main.write_text(ref)
    (found,) = found_in_hub().values()
    assert "its branch main is not here" in str(found.problem)


def test_what_is_no_model_of_the_hub_is_not_listed(hub: Path) -> None:
    for name in ("datasets--org--x", "models--", "models--..--x", ".locks", "version.txt"):
        (hub / name).mkdir(parents=True)
    assert found_in_hub() == {}


def test_a_link_out_of_the_cache_is_left_out(hub: Path, tiny: Path) -> None:
    snapshot = add_to_hub(hub, "org/tiny", *tiny.iterdir())
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tiny / "config.json")
    notes: list[str] = []
    (found,) = hugging_face_models(notes)
    assert found.folder is not None
    assert "config.json" not in found.folder
    assert notes == [f"{snapshot / 'config.json'} is left out: it leads out of the cache"]
