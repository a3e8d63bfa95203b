"""Structured logs on stderr: one event per line with its fields, never a user's words.

JSON escapes the control characters of whatever reaches a field, and so does the text format.
A log that takes nothing more is not written: its disk being full stops no answer.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDERR = 2


def configure_logs(level: str, log_format: str, process: str) -> None:
    """Set up structlog and let the libraries' warnings through; `process` names who speaks."""
    sys.stderr = _lossy(STDERR)
    number = getattr(logging, level.upper())
    # Tracebacks without locals: they hold what users wrote.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    renderers: list[structlog.typing.Processor] = [
        structlog.processors.ExceptionRenderer(tracebacks),
        structlog.processors.JSONRenderer(),
    ]
    if log_format == "text":
        plain = structlog.dev.plain_traceback
        colors = sys.stderr.isatty()
        renderers = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _name_process(process),
            structlog.processors.StackInfoRenderer(),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr)
    # It logs a traceback, with a stranger's bytes in it, for every bad UTF-8 frame.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


class _LossyFile(io.FileIO):
    """What it cannot write is lost: the reader is gone, or the disk full."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _lossy(descriptor: int) -> io.TextIOWrapper:
    """A text stream to that descriptor whose writes never fail."""
    file = _LossyFile(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(file), "utf-8", errors="backslashreplace", line_buffering=True
    )


def _name_process(process: str) -> structlog.typing.Processor:
    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    return add
