"""How tracing is turned on, and what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngineArgs, ValidationError
from engine.tracing import endpoint
from engine.tracing.endpoint import check_endpoint, open_tracing
from tests.helpers.root import ROOT

# redis-py loads the part for metrics wherever it is installed.
LOADED = "any('opentelemetry.' + n in sys.modules for n in ('sdk.trace', 'exporter', 'proto'))"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
        ("http://[::1]:4318/x?tenant=a", "http://[::1]:4318/x?tenant=a"),
    ],
)
def test_a_url_without_a_path_gets_that_of_the_protocol(given: str, url: str) -> None:
    assert check_endpoint(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "",
        "localhost:4318",
        "grpc://localhost:4317",
        "http://",
        "http://[",
        "http://h:0",
        4318,
        b"x",
    ],
)
def test_what_is_no_url_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ValidationError, match=r"otlp_traces_endpoint must be a URL") as raised:
        AsyncEngineArgs("model", otlp_traces_endpoint=given)
    assert raised.value.parameter == "otlp_traces_endpoint"


def test_a_secret_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ValidationError, match="OTEL_EXPORTER_OTLP_HEADERS") as raised:
        check_endpoint("http://user:hunter2@host")
    assert "hunter2" not in f"{raised.value} {raised.value.value}"


def test_missing_packages_are_named_with_what_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "PACKAGES", ("opentelemetry.sdk", "no_such_package.inside"))
    with pytest.raises(ValidationError, match=r"pip install 'parley\[tracing\]'"):
        AsyncEngineArgs("model", otlp_traces_endpoint="http://localhost:4318")


def test_variables_that_opentelemetry_refuses_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")
    with pytest.raises(ValidationError, match=r"OTEL_\* variables: schedule_delay") as raised:
        open_tracing("http://localhost:4318")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("module", ["engine", "server.worker.app", "server.cli"])
def test_opentelemetry_is_not_imported_while_tracing_is_off(module: str) -> None:
    check = f"import sys, {module}, engine.tracing.request_trace; sys.exit({LOADED})"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


def test_its_one_importer_is_imported_by_open_tracing_alone() -> None:
    importers = {
        path.relative_to(ROOT)
        for folder in ("engine", "server", "sessions")
        for path in (ROOT / folder).rglob("*.py")
        if "opentelemetry." in path.read_text()
    }
    endpoint_file = Path("engine/tracing/endpoint.py")  # names the packages, to look for them
    assert importers == {Path("engine/tracing/tracing.py"), endpoint_file}
