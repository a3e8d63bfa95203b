"""How tracing is turned on: `open_tracing` alone imports OpenTelemetry's packages.

They are optional (`pip install parley[tracing]`), so a module that only names `Tracing` as a
type does so under `TYPE_CHECKING`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engine.errors import ValidationError, refuse

if TYPE_CHECKING:
    from engine.tracing.tracing import Tracing

ARGUMENT = "otlp_traces_endpoint"
TRACES_PATH = "/v1/traces"  # where OTLP over HTTP takes spans
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def open_tracing(endpoint: str, attributes: Mapping[str, str] | None = None) -> Tracing:
    """Spans to this collector; `attributes` are of all of them, such as which process it is.

    The environment's `OTEL_*` variables say the rest. Raises `ValidationError` for an endpoint that
    is no URL, for packages that are missing and for variables that OpenTelemetry refuses.
    """
    url = check_endpoint(endpoint)
    from engine.tracing.tracing import Tracing

    try:
        return Tracing(url, attributes or {})
    except ValueError as error:
        raise ValidationError(f"OpenTelemetry refuses its OTEL_* variables: {error}") from None


def check_endpoint(endpoint: object, name: str = ARGUMENT) -> str:
    """The URL that takes spans. Raises `ValidationError`, also if the packages are missing.

    The message calls the endpoint by this `name`.
    """
    url = _traces_url(endpoint, name)
    if not all(_is_installed(package) for package in PACKAGES):
        problem = f"{name} needs packages of OpenTelemetry: pip install 'parley[tracing]'"
        raise ValidationError(problem, name, endpoint)
    return url


def _traces_url(endpoint: object, name: str) -> str:
    try:
        if not isinstance(endpoint, str):
            raise ValueError
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise refuse(name, endpoint, "must be a URL, such as http://127.0.0.1:4318/v1/traces")
    if parts.username is not None:  # shown in logs and in process lists
        problem = f"{name}: a password belongs in the variable OTEL_EXPORTER_OTLP_HEADERS"
        raise ValidationError(problem, name)
    path = TRACES_PATH if parts.path in ("", "/") else parts.path
    return parts._replace(path=path).geturl()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package that holds it
        return False
