import re
from pathlib import Path

import pytest

from engine.client.download import model_name, resolve_model
from engine.errors import DownloadError, UnsupportedModelError
from engine.folder.gguf.link import read_stamps
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.engine.helpers.hub.fake_hub import hub, in_fresh_process
from tests.helpers.tiny_model import build_tiny_model


def _resolve(model: str, endpoint: str, home: Path, options: str = "") -> str:
    program = (
        "import sys\nfrom engine.client.download import resolve_model\n"
        "from engine.errors import DownloadError, UnsupportedModelError\n"
        f"try: print(resolve_model(sys.argv[1], {options}))\n"
        "except (DownloadError, UnsupportedModelError) as error: print(f'error: {error}')"
    )
    return in_fresh_process(program, endpoint, home, model)


def test_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["./missing", "/no/such/folder", "a/b/c", "sp ace", "../up", "~nobody/x", "./" + 300 * "x"],
)
def test_what_can_be_no_hub_id_is_a_missing_folder(name: str) -> None:
    with pytest.raises(DownloadError, match="there is no folder"):
        resolve_model(name)
    assert model_name(name) == name


def test_a_download_says_how_far_it_is(tmp_path: Path) -> None:
    """Without a terminal, too."""
    with hub() as endpoint:
        tell = "on_progress=lambda share: print(f'{share:.2f};', end='')"  # by several threads
        said = _resolve("org/tiny", endpoint, tmp_path, options=tell)
    shares = [float(share) for share in re.findall(r"(\d\.\d\d);", said)]
    assert shares[-1] == 1.0 and all(0 <= share <= 1 for share in shares)


def test_hub_id_is_downloaded_without_code_and_pickles(tmp_path: Path) -> None:
    with hub() as endpoint:
        folder = Path(_resolve("org/tiny", endpoint, tmp_path))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]


def test_of_a_model_that_others_serve_no_weights_are_downloaded(tmp_path: Path) -> None:
    with hub() as endpoint:
        folder = Path(_resolve("org/tiny", endpoint, tmp_path, options="needs_weights=False"))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("org/unknown", "the hub has no model org/unknown, or it is private"),
        ("org/gated", "org/gated is gated"),
        ("org/broken", "org/broken"),
    ],
)
def test_refusal_of_the_hub_is_one_line(tmp_path: Path, model: str, says: str) -> None:
    with hub() as endpoint:
        answer = _resolve(model, endpoint, tmp_path)
    assert answer.startswith(f"error: {says}")
    assert "\n" not in answer


def test_no_network_is_one_line(tmp_path: Path) -> None:
    answer = _resolve("org/tiny", "http://127.0.0.1:9", tmp_path)
    assert (
        answer == "error: org/tiny is not downloaded yet, and http://127.0.0.1:9 cannot be reached"
    )


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of a model, one in parts and a projector for pictures."""
    folder = tmp_path_factory.mktemp("ggufs")
    original = build_tiny_model(tmp_path_factory.mktemp("tiny"))
    for kind in ("F32", "Q4_0"):
        write_gguf(original, folder / f"tiny-{kind}.gguf", kind)
    write_gguf(original, folder / "tiny-Q8_0.gguf", "Q8_0", split=20)
    (folder / "mmproj-tiny-F16.gguf").write_bytes(b"GGUF")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _files(folder: Path | str) -> list[str]:
    """The names of the GGUF files that a derived folder stands for."""
    return [file.name for file in read_stamps(Path(folder)).files]


PARTS = ["tiny-Q8_0-00001-of-00002.gguf", "tiny-Q8_0-00002-of-00002.gguf"]


@pytest.mark.usefixtures("cache")
def test_gguf_file_gets_a_folder(ggufs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve_model(str(ggufs / "tiny-Q4_0.gguf"))
    assert _files(folder) == ["tiny-Q4_0.gguf"]
    monkeypatch.chdir(ggufs)
    assert resolve_model("tiny-Q4_0.gguf") == folder


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", PARTS)
def test_part_of_a_gguf_stands_for_all(ggufs: Path, name: str) -> None:
    assert _files(resolve_model(str(ggufs / name))) == PARTS


@pytest.mark.usefixtures("cache")
def test_folder_of_one_gguf_is_its_model(ggufs: Path, tmp_path: Path) -> None:
    for name in (*PARTS, "mmproj-tiny-F16.gguf"):
        (tmp_path / name).write_bytes((ggufs / name).read_bytes())
    (tmp_path / "config.json").write_text("{}")  # as repositories of the hub have one beside it
    assert _files(resolve_model(str(tmp_path))) == PARTS


def test_folder_of_several_ggufs_says_which_there_are(ggufs: Path) -> None:
    with pytest.raises(DownloadError) as refused:
        resolve_model(str(ggufs))
    several = "has several models: tiny-F32, tiny-Q4_0, tiny-Q8_0; name one of the files"
    assert str(refused.value) == f"{ggufs} {several}"


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("text")
    with pytest.raises(UnsupportedModelError, match=r"a\.gguf: is no GGUF file"):
        resolve_model(str(tmp_path / "a.gguf"))
    with pytest.raises(DownloadError, match=r"there is no file ./b\.gguf"):
        resolve_model("./b.gguf")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("tiny-F32.gguf", "tiny-F32"),
        (PARTS[1], "tiny-Q8_0"),
        (".", ""),
        ("org/tiny-GGUF:Q4_0", "org/tiny-GGUF:Q4_0"),
    ],
)
def test_model_is_called_by_its_file(
    ggufs: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str
) -> None:
    monkeypatch.chdir(ggufs)
    assert model_name(model) == name
    assert model_name(str(ggufs)) == ggufs.name


@pytest.mark.parametrize(
    ("suffix", "names"),
    [
        ("", ["tiny-Q4_0.gguf"]),
        (":f32", ["tiny-F32.gguf"]),
        (":Q8_0", PARTS),
        (":tiny-Q8_0", PARTS),  # as `parley models` lists it
    ],
)
def test_only_the_gguf_that_is_meant_is_downloaded(
    ggufs: Path, tmp_path: Path, suffix: str, names: list[str]
) -> None:
    files = {file.name: file.read_bytes() for file in ggufs.iterdir()} | {"config.json": b"{}"}
    if names == PARTS:  # as large ones lie in folders of their own
        files |= {f"Q8_0/{name}": files.pop(name) for name in PARTS}
    with hub(tiny_GGUF=files) as endpoint:
        folder = _resolve(f"org/tiny-GGUF{suffix}", endpoint, tmp_path)
    assert _files(folder) == names
    downloaded = {file.name for file in (tmp_path / "hub").rglob("*.gguf")}
    assert downloaded == set(names)
    again = _resolve(f"org/tiny-GGUF{suffix}", "http://127.0.0.1:9", tmp_path)
    assert again == folder  # without a network


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("org/others-GGUF", "org/others-GGUF has no safetensors weights, and it has several"),
        ("org/others-GGUF:Q4_K_M", "org/others-GGUF has no model named Q4_K_M; there are a-F16, b"),
        ("org/none", "org/none has no safetensors weights, and it has no GGUF files of a model"),
        ("org/cut-GGUF", ""),
        ("org/unknown:Q4_0", "the hub has no model org/unknown, or it is private"),
        ("org/tiny:a/b", "there is no folder org/tiny:a/b"),
    ],
)
def test_gguf_that_is_not_there_is_one_line(tmp_path: Path, model: str, says: str) -> None:
    others = {"a-F16.gguf": b"GGUF", "b-F16.gguf": b"GGUF"}
    cut = {"cut-Q4_0.gguf": b"GGUF\3"}
    with hub(others_GGUF=others, none={"README.md": b""}, cut_GGUF=cut) as endpoint:
        answer = _resolve(model, endpoint, tmp_path)
    assert answer.startswith(f"error: {says}")
    assert says or "cut-Q4_0.gguf: is cut" in answer
    assert "\n" not in answer
