"""docs/deployment/deployment.md: what its commands name is there, and named so."""

from __future__ import annotations

import re

import typer
import yaml
from typer.core import TyperGroup

from server.cli import app
from tests.deployment.packages import CHART, DEPLOYMENT
from tests.deployment.test_compose import GIVEN
from tests.helpers.root import ROOT
from tests.server.telemetry.test_metrics import exported

PAGE = (ROOT / "docs" / "deployment" / "deployment.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.M | re.S)


def test_the_files_that_commands_name_are_there() -> None:
    named = {
        path for block in BLOCKS for path in re.findall(r"examples/deployment/[\w./-]+", block)
    }
    assert len(named) >= 4
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_secret_that_is_made_has_the_keys_that_the_chart_reads() -> None:
    made = set(re.findall(r"--from-literal=([\w-]+)=", PAGE))
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    read = set(re.findall(r"key: ([a-z-]+)\}", text))
    assert made == read - {"redis-url"}  # which is in place of the password


def test_the_variables_for_compose_are_those_that_it_asks_for() -> None:
    (block,) = [block for block in BLOCKS if "docker compose up" in block]
    assert set(re.findall(r"^(\w+)=", block, re.M)) == {*GIVEN, "SITE"}


def test_the_commands_of_parley_exist() -> None:
    commands = typer.main.get_command(app)
    assert isinstance(commands, TyperGroup)
    known = set(commands.commands)
    used = {
        word
        for block in BLOCKS
        for word in re.findall(r"(?:exec parley |-- |bin/)parley (\w+)", block)
    }
    assert used == {"login", "core"}
    assert used <= known


def test_the_rule_for_an_hpa_finds_the_figures_that_it_scales_by() -> None:
    (block,) = [block for block in BLOCKS if block.startswith("rules:")]
    (rule,) = yaml.safe_load(block)["rules"]
    (pattern,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    found = {name for name in exported() if re.fullmatch(pattern, name)}
    scaling = (CHART / "templates" / "scaling.yaml").read_text()
    assert found == set(re.findall(r"^ +name: (parley_\w+)$", scaling, re.M))


def test_each_file_for_systemd_has_its_place() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    for path in (DEPLOYMENT / "systemd").iterdir():
        assert f"`{path.name}`" in rows, path.name
