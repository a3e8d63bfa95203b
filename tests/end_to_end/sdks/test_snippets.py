"""The snippets of docs/clients/clients.md do what they say; those of large clients in `others/`."""

import json
import re
from pathlib import Path

from tests.end_to_end.sdks.environment import OPENAI_NODE, OPENAI_PYTHON, node_with, python_with
from tests.end_to_end.sdks.snippets import PAGE, run, run_python, sections, snippet
from tests.end_to_end.site.harness import Server

HERE = {"openai-python": 3, "openai-node": 1, "curl": 1, "What takes a base URL": 1}
OTHERS = {"litellm": 1, "langchain-openai": 1, "guidellm": 1, "Open WebUI": 1}
WORDS = re.compile(r"^[\w ,.:;!?*'\"\n-]{40,}", re.ASCII)  # as the demo model tells


def test_each_snippet_of_the_page_is_run_by_a_test() -> None:
    counts = {heading: len(found) for heading, found in sections().items()}
    assert counts == {"": 1} | HERE | OTHERS


def test_the_page_names_the_versions_that_are_tested() -> None:
    assert OPENAI_PYTHON.replace("[realtime]==", " ") in PAGE
    assert OPENAI_NODE.replace("@", " ") in PAGE


def python(server: Server, folder: Path, place: int) -> str:
    text = snippet("openai-python", place)
    return run_python(server, folder, python_with(OPENAI_PYTHON), text)


def test_a_story_streams_until_it_is_closed(demo_server: Server, tmp_path: Path) -> None:
    assert WORDS.match(python(demo_server, tmp_path, 0))


def test_a_response_is_followed_and_answered(demo_server: Server, tmp_path: Path) -> None:
    printed = python(demo_server, tmp_path, 1)
    assert WORDS.match(printed) and printed.endswith("\ncompleted\n")


def test_a_text_goes_on_and_texts_are_vectors(demo_server: Server, tmp_path: Path) -> None:
    text, vectors = python(demo_server, tmp_path, 2).rstrip().rsplit("\n", 1)
    assert text.strip()
    assert vectors == "2 vectors of 256 numbers"


def test_a_story_streams_in_node(demo_server: Server, tmp_path: Path) -> None:
    folder = node_with(OPENAI_NODE)
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    (tmp_path / "snippet.mjs").write_text(snippet("openai-node"))
    assert WORDS.match(run(demo_server, tmp_path, "exec node snippet.mjs"))


def test_a_story_streams_by_curl(demo_server: Server, tmp_path: Path) -> None:
    lines = run(demo_server, tmp_path, snippet("curl")).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert WORDS.match("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks))


def test_a_tool_finds_server_and_model(demo_server: Server, tmp_path: Path) -> None:
    health, models = run(demo_server, tmp_path, snippet("What takes a base URL")).split("}", 1)
    assert health == '{"status":"ok"'
    assert json.loads(models)["data"][0]["id"] == "parley-demo"
