"""The pages say what the code does: links lead somewhere, and no name is missing or invented."""

import inspect
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import engine.errors
from engine import (
    AsyncLLM,
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
)
from engine.client.args import _CHOICES
from engine.client.requests.inputs import check_params
from engine.logprobs import FlatLogprobs
from engine.repetition import REPETITION_DETECTED
from server.config.settings import OTHER_NAMES, PREFIX, Settings
from server.protocol import server_frames
from server.protocol.client_frames import TYPES
from server.protocol.client_frames import Settings as ResponseSettings
from server.protocol.close_codes import CloseCode
from server.protocol.errors import CODES
from tests.helpers.marked_rows import rows_by_test
from tests.helpers.root import ROOT

# A page that is being written is not in git yet, and one in .venv is not ours.
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
ENGINE = (ROOT / "docs" / "engine.md").read_text()
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text()

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SETTING = re.compile(rf"\b{PREFIX}[A-Z_]*[A-Z]")
METRIC = re.compile(r"`(parley_[a-z_]+)`")
TEST = re.compile(r"`(test_\w+)(…?)`")
TEST_FILE = re.compile(r"`((?:tests/(?:\w+/)*)?test_\w+\.py)`")
ROWS = {"E": 11, "S": 10, "R": 17, "C": 21, "N": 11, "B": 48}  # the last of each without a gap
ROW = re.compile(r"\brows? ([A-Z]\d+(?:(?:, | and | to )[A-Z]\d+)*)")  # as prose names them
MATRIX = re.findall(r"^\| ([A-Z]\d+(?:, [A-Z]\d+)*) \| (.+) \|$", RELIABILITY, re.M)


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    names = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
    return {name.replace(" ", "-") for name in names}


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its rank."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_at_most_120_characters_long(page: Path) -> None:
    lines = [line for line in prose(page).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


def documented_methods() -> dict[str, str]:
    """Public names of `AsyncLLM` and what docs/engine.md says becomes of them."""
    rows = re.findall(r"^\| (`[^|]+) \| (works|refused) \|", section(ENGINE, "Methods"), re.M)
    return {name: what for names, what in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | set(OTHER_NAMES)
    assert set(SETTING.findall(page.read_text())) - known == set()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_settings_table_says_what_the_help_says(name: str) -> None:
    field = Settings.model_fields[name]
    listed = ", ".join(field.default) if isinstance(field.default, tuple) else field.default
    default = "" if listed in (None, "") else f"`{listed}`"
    row = f"| `{PREFIX}{name.upper()}` | {default} | {field.description} |"
    assert row in OPERATIONS.splitlines(), f"docs/operations.md lacks: {row}"


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_every_other_name_is_explained(name: str) -> None:
    assert f"`{name}`" in OPERATIONS


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_described_with_its_http_status(code: str) -> None:
    _, status = CODES[code]
    rows = [
        line for line in PROTOCOL.splitlines() if line.startswith("| `") and f"`{code}`" in line
    ]
    assert any(str(status) in row.split("|")[2] for row in rows), code


@pytest.mark.parametrize("kind", sorted({*TYPES, *server_frames.TYPES}))
def test_every_frame_has_a_row(kind: str) -> None:
    names = [
        name for row in re.findall(r"^\| (`[^|]+) \|", PROTOCOL, re.M) for name in row.split(", ")
    ]
    assert f"`{kind}`" in names


@pytest.mark.parametrize("kind", TYPES)
def test_every_field_of_a_clients_frame_is_described(kind: str) -> None:
    for field in TYPES[kind].__struct_fields__:
        assert re.search(rf"\b{field}\b", PROTOCOL), f"{kind}: {field}"


@pytest.mark.parametrize("name", ResponseSettings.__struct_fields__)
def test_every_setting_of_a_response_is_described(name: str) -> None:
    assert re.search(rf"^\| .*`{name}`", PROTOCOL, re.M)


@pytest.mark.parametrize("code", list(CloseCode), ids=str)
def test_every_close_code_is_described(code: CloseCode) -> None:
    cells = re.findall(r"^\| ([\d, ]+) \|", PROTOCOL, re.M)
    assert str(int(code)) in ", ".join(cells).split(", ")


def test_no_metric_of_ours_is_missing() -> None:
    source = (ROOT / "server" / "telemetry" / "metrics.py").read_text()
    described = set(METRIC.findall(OPERATIONS))
    for name in re.findall(r'"(parley_[a-z_]+)"', source):
        if name != "parley_":
            assert described & {name, f"{name}_total"}, name


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_every_sampling_parameter_has_a_row_with_its_default(name: str) -> None:
    default = getattr(SamplingParams, "__struct_defaults__")[  # noqa: B009  (unknown to mypy)
        SamplingParams.__struct_fields__.index(name)
    ]
    shown = default.name if name == "output_kind" else repr(default)
    assert re.search(rf"^\| `{name}` \| `{re.escape(shown)}` \| .", ENGINE, re.M)


def test_no_sampling_parameter_is_invented() -> None:
    names = re.findall(r"^\| `(\w+)` \| `", section(ENGINE, "SamplingParams"), re.M)
    assert names == list(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(
    "name", re.findall(r"^\| `(\w+)` .*\| refused when set", ENGINE, re.M), ids=str
)
def test_sampling_parameters_that_are_refused_are_refused_by_name(name: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(NotImplementedError, match=name):
        check_params(SamplingParams(**given), max_logprobs=20)


def test_the_methods_of_the_engine_are_those_of_the_class() -> None:
    public = {name for name in dir(AsyncLLM) if not name.startswith("_")}
    assert set(documented_methods()) == public


def test_every_error_of_the_engine_is_described() -> None:
    errors = {
        name
        for name, value in vars(engine.errors).items()
        if inspect.isclass(value) and value.__module__ == "engine.errors"
    }
    named = set(re.findall(r"`(\w+Error)`", section(ENGINE, "Errors")))
    assert named - {"ValueError", "RuntimeError"} == errors


def test_every_part_of_an_output_that_the_page_names_exists() -> None:
    known = {*RequestOutput.__slots__, *CompletionOutput.__slots__, *RequestMetrics.__slots__}
    known |= {"index", "code", "message", "decoded_token", "abort", "max_tokens", "stop_token_ids"}
    known |= {"CUMULATIVE", "DELTA", "FINAL_ONLY", "stop", "length", "error"}
    known |= {"flat_logprobs", FlatLogprobs.__name__}
    known |= {"prompt_logprob_token_ids", "prompt_logprob_start", "logprobs_mode"}
    known |= {str(mode) for mode in _CHOICES["logprobs_mode"]}
    known |= {"repetition", "repetition_detection", REPETITION_DETECTED}
    named = set(re.findall(r"`(\w+)`", section(ENGINE, "Outputs")))
    assert named - known == {"RequestOutput", "CompletionOutput", "output_kind"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    found = list((ROOT / "tests").rglob("test_*.py"))
    files = {file.name for file in found} | {str(file.relative_to(ROOT)) for file in found}
    text = page.read_text()
    if page.name != "engine.md":  # it names files of vLLM's suite
        assert set(TEST_FILE.findall(text)) <= files
    for name, begins in TEST.findall(text):
        if begins:
            assert any(one.startswith(name) for one in rows_by_test()), name
        else:
            assert name in rows_by_test()


def marked() -> set[str]:
    """The rows that a test is marked with."""
    return set().union(*rows_by_test().values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_that_a_page_names_has_a_test(page: Path) -> None:
    named = {row for rows in ROW.findall(page.read_text()) for row in re.findall(r"\w\d+", rows)}
    assert named - marked() == set()


def test_every_row_that_a_test_shows_is_on_a_page() -> None:
    on_pages = {row for rows, _ in MATRIX for row in rows.split(", ")}
    for page in PAGES:
        for rows in ROW.findall(page.read_text()):
            on_pages |= set(re.findall(r"\w\d+", rows))
            for kind, first, last in re.findall(r"(\w)(\d+) to \w(\d+)", rows):
                on_pages |= {f"{kind}{number}" for number in range(int(first), int(last) + 1)}
    assert marked() - on_pages == set()


@pytest.mark.parametrize("kind", ROWS)
def test_every_row_of_the_fault_matrix_is_listed_and_has_a_test(kind: str) -> None:
    listed = {row for rows, _ in MATRIX for row in rows.split(", ") if row[0] == kind}
    assert {f"{kind}{number}" for number in range(1, ROWS[kind] + 1)} - listed == set()
    assert listed - marked() == set()


@pytest.mark.parametrize(("rows", "cells"), MATRIX, ids=[rows for rows, _ in MATRIX])
def test_every_test_in_the_fault_matrix_is_marked_with_its_row(rows: str, cells: str) -> None:
    for name, begins in TEST.findall(cells):
        assert begins or rows_by_test()[name] & set(rows.split(", ")), name


def drawn_folders() -> set[str]:
    """The folders of the tree that the architecture draws, from the top: `engine/core/ops`."""
    tree = section(ARCHITECTURE, "The house, room by room")
    folders, above = set(), [""]
    for line in tree.splitlines():
        if (found := re.match(r"((?:│   |    )*)(├── |└── )?([\w/]+)/ ", line)) is not None:
            depth = len(found[1]) // 4 + (found[2] is not None)
            above[depth:] = [above[depth - 1] + f"/{found[3]}" if depth else found[3]]
            folders.add(above[-1])
    return folders


def test_the_tree_of_the_architecture_shows_each_folder() -> None:
    tops = ("server", "sessions", "engine", "csrc", "bench", "static/js")
    files = [path for top in tops for path in (ROOT / top).rglob("*.*") if path.is_file()]
    folders = {path.parent.relative_to(ROOT) for path in files if path.parent.name != "__pycache__"}
    assert drawn_folders() == {str(folder) for folder in folders} - {"bench/results"}


WHERE = re.findall(
    r"^\| ([^|]+) \| `([^`]+)` \| `(\w+)` \|$", section(ARCHITECTURE, "Where is …?"), re.M
)


@pytest.mark.parametrize(
    ("file", "name"), [row[1:] for row in WHERE], ids=[row[0] for row in WHERE]
)
def test_what_the_architecture_says_where_to_find_is_defined_there(file: str, name: str) -> None:
    defined = {
        ".py": rf"^ *(async )?(def|class) {name}\b",
        ".js": rf"^(export )?(class|function) {name}\b|^  (async )?{name}\(.*\) {{$",
        ".h": rf"\b{name}\(.*{{$",
    }[Path(file).suffix]
    assert re.search(defined, (ROOT / file).read_text(), re.M)


def test_the_architecture_says_where_thirty_things_are() -> None:
    assert len(WHERE) >= 30


def test_every_folder_of_the_repository_is_in_the_readme() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    folders = {line.split("/")[0] for line in listed.splitlines() if "/" in line} - {".ci"}
    readme = (ROOT / "README.md").read_text()
    assert {folder for folder in folders if f"({folder})" not in readme} == set()
