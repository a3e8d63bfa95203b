"""The examples of an older version run unchanged: its clients here, its programs on our engine."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.chat import test_examples as examples_of_today
from tests.end_to_end.site.harness import Server
from tests.upgrades.older_tree import OLDER, extract

# Of today's tests those that look at what an example is for; how long a client waits may change.
CLIENTS = [
    "test_the_python_client_streams_an_answer_until_ctrl_c_stops_it",
    "test_the_javascript_client_streams_an_answer_until_ctrl_c_stops_it",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "test_the_python_client_goes_on_after_a_lost_connection",
            "test_the_javascript_client_goes_on_after_a_lost_connection",
        )
    ),
]


@pytest.fixture(scope="module", params=OLDER)
def older_examples(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return extract(request.param, tmp_path_factory.mktemp("examples"), "examples") / "examples"


@pytest.fixture(scope="module")
def server(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("data") / "data", oracle_model, PARLEY_PACE="200")
    try:
        yield server.start()
        server.history.check()
    finally:
        server.close()


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_of_an_older_version_works_unchanged(
    older_examples: Path,
    server: Server,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examples_of_today, "script", lambda file: str(older_examples / file))
    of_today = getattr(examples_of_today, name)
    given = {"server": server, "tmp_path": tmp_path}
    await of_today(**{name: given[name] for name in inspect.signature(of_today).parameters})


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (("generate.py", "--max-tokens", "20"), "[20 tokens in "),
        pytest.param(
            ("stream_task.py", "--step", "5", "--enough", "20"),
            " tokens, abort]",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("timeout.py", "--pace", "0", "--seconds", "60"),
            "The answer ended within",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_an_engine_example_of_an_older_version_works_unchanged(
    older_examples: Path, arguments: tuple[str, ...], ends: str
) -> None:
    path = str(older_examples / arguments[0])
    started = await examples_of_today.start(sys.executable, path, *arguments[1:])
    assert ends in await examples_of_today.finish(started)
