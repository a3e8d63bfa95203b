"""The units for systemd, against systemd where it is installed, and Parley's settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from server.cli import CORE_SETTINGS, app
from server.config.settings import PREFIX
from sessions.connection.address import RedisAddress
from tests.deployment.packages import CHART, DEPLOYMENT
from tests.deployment.read_settings import read_settings
from tests.helpers.root import ROOT

FOLDER = DEPLOYMENT / "systemd"
PAGE = ROOT / "docs" / "deployment" / "deployment.md"
UNITS = sorted(FOLDER.glob("*.service"))
EXIT_CANNOT_START = "2"  # as docs/operations.md says
DOCKERFILE = DEPLOYMENT / "image" / "Dockerfile"


def unit(name: str) -> dict[str, list[str]]:
    """The values of each word of a unit, in all sections."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / f"{name}.service").read_text().splitlines():
        if not line.startswith(("#", "[")) and "=" in line:
            word, _, value = line.partition("=")
            found.setdefault(word, []).append(value)
    return found


def variables(path: Path, comment: str = "") -> dict[str, str]:
    """Of a file for EnvironmentFile; with `comment`, those after that sign."""
    lines = path.read_text().splitlines()
    pairs = (
        line.removeprefix(comment).partition("=")
        for line in lines
        if re.match(rf"{comment}\w+=", line)
    )
    return {name: value.strip('"') for name, _, value in pairs}


def set_in(units: dict[str, list[str]]) -> dict[str, str]:
    return dict(
        pair.split("=", 1) for line in units.get("Environment", ()) for pair in line.split(" ")
    )


# Containers, where many run these tests, have no systemd.
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in UNITS:  # their programs are not installed here
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.M)
        (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("*.service"))]
    done = subprocess.run(command, capture_output=True, text=True)
    problems = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, problems) == (0, [])


def test_parley_takes_the_settings_of_its_unit() -> None:
    given = {
        **variables(FOLDER / "parley.env"),
        **{k: v for k, v in set_in(unit("parley")).items() if k.startswith(PREFIX)},
    }
    settings = read_settings(given)
    assert settings.redis_url is None  # its own, unless one is named
    offered = variables(FOLDER / "parley.env", "#")
    shared = read_settings({**given, **offered})
    assert shared.redis_url is not None
    address = RedisAddress.parse(shared.redis_url)
    hosts = variables(FOLDER / "redis.env")["NODES"].split(" ")
    assert (address.kind, [host for host, _ in address.nodes]) == ("sentinel", hosts)


def test_a_core_alone_takes_its_settings_and_is_started_as_the_command_has_it() -> None:
    settings = read_settings(variables(FOLDER / "core.env"))
    assert len(settings.models) == 1
    assert {name.removeprefix(PREFIX).lower() for name in variables(FOLDER / "core.env")} <= {
        *CORE_SETTINGS
    }
    (command,) = unit("parley-core")["ExecStart"]
    program, name, *options = command.split(" ")
    assert (program, name) == ("/opt/parley/bin/parley", "core")
    commands = typer.main.get_command(app)
    assert isinstance(commands, TyperGroup)
    read = commands.commands["core"].make_context("core", options).params  # and nothing is run
    assert read["listen"] == "tcp://0.0.0.0:7700" and str(read["keys"]) in PAGE.read_text()
    words = unit("parley-core")
    assert words["KillMode"] == ["mixed"]
    assert words["RestartPreventExitStatus"] == [EXIT_CANNOT_START]


def test_the_first_signal_is_for_the_supervisor_alone_and_gives_answers_their_time() -> None:
    """Redis would stop at once if it got the signal, too."""
    words = unit("parley")
    assert words["KillMode"] == ["mixed"]
    drain = read_settings(variables(FOLDER / "parley.env")).drain_seconds
    assert float(words["TimeoutStopSec"][0]) > drain + 10


def test_a_server_that_cannot_start_is_not_started_again_and_again() -> None:
    words = unit("parley")
    assert words["Restart"] == ["on-failure"]
    assert words["RestartPreventExitStatus"] == [EXIT_CANNOT_START]


@pytest.mark.parametrize("name", ["parley-redis", "parley-sentinel"])
def test_redis_is_started_by_the_scripts_with_all_that_they_need(name: str) -> None:
    words = unit(name)
    script = CHART / "files" / words["ExecStart"][0].rpartition("/")[2]
    given = {**variables(FOLDER / "redis.env"), **set_in(words)}
    named = set(re.findall(r"\$([A-Z_]+)\b", script.read_text()))
    optional = set(re.findall(r"\$\{([A-Z_]+):-", script.read_text()))
    assert named - optional <= set(given)
    assert given["HOST"] in given["NODES"].split(" ")


def test_the_image_starts_parley_as_the_chart_and_compose_count_on() -> None:
    text = DOCKERFILE.read_text()
    environment = dict(
        pair.split("=", 1)
        for line in re.findall(r"^ENV (.+)$", text, re.M)
        for pair in line.split()
    )
    ours = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    settings = read_settings(ours)
    assert (settings.host, str(settings.data_dir)) == ("0.0.0.0", "/data")
    assert re.search(r"^USER 10001$", text, re.M)
    assert re.search(r'^ENTRYPOINT \["parley"\]\nCMD \["serve"\]$', text, re.M)
    assert "runAsUser: 10001" in (CHART / "templates" / "server.yaml").read_text()
    for source in re.findall(r"^COPY (?!--)(\S+) ", text, re.M):
        assert (DEPLOYMENT.parents[1] / source).exists(), source
