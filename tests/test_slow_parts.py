"""Each slow test is in one named part, and CONTRIBUTING.md lists the parts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.root import ROOT
from tests.slow_parts import PARTS, part_of


@pytest.mark.parametrize(
    ("path", "parameters", "part"),
    [
        ("engine/core/scheduling/test_scheduler.py", "", "engine"),
        ("engine/core/ops/test_levels.py", "avx2]", "levels"),
        ("fuzz/test_fuzz.py", "http]", "fuzz-http"),
        ("end_to_end/security/test_floods.py", "pings]", "floods"),
        ("end_to_end/chat/test_crowds.py", "", "end-to-end"),
        ("end_to_end/own/test_history.py", "", "tools"),
    ],
)
def test_a_part_is_a_folder_or_what_takes_long_in_it(path: str, parameters: str, part: str) -> None:
    assert part_of(Path(path), parameters) == part


def test_a_slow_test_that_no_part_would_run_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"tests/static/test_new.py\[\] is in no part"):
        part_of(Path("static/test_new.py"), "]")
    with pytest.raises(KeyError, match="in no part"):
        part_of(Path("fuzz/test_fuzz.py"), "a-new-target]")


def test_make_gives_pytest_a_part_that_it_cannot_take_for_a_folder() -> None:
    """Of `--part server` pytest takes `server` for the folder to test: it knows no option yet."""
    printed = subprocess.run(
        ["make", "-n", "test-slow", "PART=server"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-m slow --part=server" in printed


def test_contributing_tells_what_each_part_is() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page[page.index("| part |") :].partition("\n\n")[0]
    named = re.findall(r"`([\w-]+)`", table)
    assert sorted(named) == sorted(set(PARTS.values()))
