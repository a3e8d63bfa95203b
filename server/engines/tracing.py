"""Spans on their way to a collector, which the server and the engine's client make alike."""

from typing import TYPE_CHECKING

from engine.tracing.endpoint import check_endpoint as check_endpoint
from engine.tracing.endpoint import open_tracing as open_tracing

if TYPE_CHECKING:  # importing it loads OpenTelemetry
    from engine.tracing.tracing import Attributes as Attributes
    from engine.tracing.tracing import Tracing as Tracing
