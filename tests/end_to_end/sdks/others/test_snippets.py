"""The snippets of docs/clients/clients.md for clients other than OpenAI's own."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import (
    GUIDELLM,
    LANGCHAIN,
    LITELLM,
    OPEN_WEBUI,
    OTHERS,
    guidellm_python,
    python_with,
)
from tests.end_to_end.sdks.others.offline import OFFLINE
from tests.end_to_end.sdks.snippets import PAGE, run, run_python, snippet
from tests.end_to_end.site.harness import Server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pinned", [LITELLM, LANGCHAIN, GUIDELLM, OPEN_WEBUI])
def test_the_page_names_the_version_that_is_tested(pinned: str) -> None:
    assert pinned.replace("==", " ") in PAGE


def test_litellm_tells_a_story_and_makes_vectors(demo_server: Server, tmp_path: Path) -> None:
    python = python_with(LITELLM, among=OTHERS)
    printed = run_python(demo_server, tmp_path, python, snippet("litellm"), OFFLINE)
    assert re.search(r"\w.{80,}\n2 vectors\n\Z", printed, re.DOTALL)


def test_langchain_tells_a_story_and_makes_a_vector(demo_server: Server, tmp_path: Path) -> None:
    python = python_with(LANGCHAIN, among=OTHERS)
    printed = run_python(demo_server, tmp_path, python, snippet("langchain-openai"), OFFLINE)
    assert re.search(r"\w.{80,}\n256 numbers\n\Z", printed, re.DOTALL)


def test_guidellm_measures_without_an_error(demo_server: Server, tmp_path: Path) -> None:
    path = f"{guidellm_python().parent}:{os.environ['PATH']}"
    run(demo_server, tmp_path, snippet("guidellm"), {**OFFLINE, "PATH": path})
    (benchmark,) = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), requests["errored"]) == (20, [])
    assert {request["output_tokens"] for request in requests["successful"]} == {32}
