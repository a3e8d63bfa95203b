from pathlib import Path

import pytest

from engine.errors import UnsupportedModelError
from engine.folder.gguf.parts import part_files, part_name, read_parts
from tests.engine.helpers.gguf.gguf_bytes import gguf_file, string, tensor, u32


def split(folder: Path, count: int = 3, **changes: int) -> Path:
    """A model in parts of one tensor each; the first part is returned."""
    for number in range(count):
        keys = [string("general.architecture", "llama")] if number == 0 else []
        keys += [u32("split.no", changes.get("number", number))]
        keys += [u32("split.count", changes.get("said", count))]
        keys += [u32("split.tensors.count", changes.get("tensors", count))]
        name = "same" if "same" in changes else f"t{number}"
        file = folder / f"tiny-{number + 1:05d}-of-{count:05d}.gguf"
        gguf_file(file, keys, [tensor(name, [8], 0)], bytes(32))
    return folder / f"tiny-00001-of-{count:05d}.gguf"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_stands_for_all(tmp_path: Path, number: int) -> None:
    split(tmp_path)
    files = part_files(tmp_path / f"tiny-{number:05d}-of-00003.gguf")
    model = read_parts(files)
    assert model.metadata["general.architecture"] == "llama"
    assert {name: file.name for name, (file, _) in model.tensors.items()} == {
        f"t{each}": f"tiny-{each + 1:05d}-of-00003.gguf" for each in range(3)
    }


def test_first_part_may_hold_metadata_alone(tmp_path: Path) -> None:
    first = split(tmp_path, tensors=2)
    keys = [u32("split.no", 0), u32("split.count", 3), u32("split.tensors.count", 2)]
    gguf_file(first, keys)
    assert read_parts(part_files(first)).tensors.keys() == {"t1", "t2"}


def test_file_of_another_name_is_all_of_its_model(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "tiny.gguf", [], [tensor("a", [8], 0)], bytes(32))
    assert part_files(file) == (file,)
    assert read_parts((file,)).tensors.keys() == {"a"}


def test_missing_part_is_named(tmp_path: Path) -> None:
    first = split(tmp_path)
    (tmp_path / "tiny-00002-of-00003.gguf").unlink()
    with pytest.raises(UnsupportedModelError, match=r"tiny-00002-of-00003\.gguf: is missing"):
        part_files(first)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"said": 4}, "is named as part 1 of 3, and says split.no 0, split.count 4"),
        ({"number": 0}, "is named as part 2 of 3, and says split.no 0"),
        ({"tensors": 5}, "split.tensors.count is 5, the parts hold 3"),
        ({"same": 1}, "tiny-00002-of-00003.gguf: holds 'same', as tiny-00001-of-00003.gguf does"),
    ],
)
def test_parts_of_other_models_are_refused(
    tmp_path: Path, changes: dict[str, int], says: str
) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        read_parts(part_files(split(tmp_path, **changes)))
    assert says in str(refused.value)


def test_part_of_another_name_is_refused(tmp_path: Path) -> None:
    renamed = split(tmp_path).rename(tmp_path / "renamed.gguf")
    with pytest.raises(UnsupportedModelError, match="is a part of 3; parts are named"):
        read_parts(part_files(renamed))


@pytest.mark.parametrize("name", ["a-00004-of-00003.gguf", "a-00000-of-00003.gguf"])
def test_part_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"is named as part \d of 3"):
        part_files(tmp_path / name)


def test_too_many_parts_are_refused_before_they_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is named as part 1 of 99999"):
        part_files(tmp_path / "a-00001-of-99999.gguf")


def test_name_of_a_part_tells_what_all_share() -> None:
    assert part_name("a-b-00002-of-00010.gguf") == ("a-b", 2, 10)
    assert part_name("a-2-of-10.gguf") is None
