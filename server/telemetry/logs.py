"""Structured logs on stderr: one event per line with its fields, never a user's words.

JSON escapes the control characters of all that reaches a field, and so does the text format. Where
the format is JSON, every line of stdout and stderr is, also those that libraries print, warnings
and exceptions that nobody catches.
A log that takes nothing more is not written: its disk being full stops no answer. When it takes
lines again, the first one says how many are lost.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import TYPE_CHECKING

import structlog

from engine.log import JsonFormatter, as_json_line, log_uncaught

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

STDOUT, STDERR = 1, 2
LEVELS = ("debug", "info", "warning", "error")


class _Leveled:
    """What our loggers can do, at the level of this moment: they are made once, and kept."""

    level = "info"


_BoundLogger = type("_BoundLogger", (structlog.make_filtering_bound_logger(logging.INFO),), {})


def configure_logs(level: str, log_format: str, process: str) -> None:
    """Set up structlog and let the libraries' warnings through; `process` names who speaks."""
    words = (lambda text: as_json_line(text, process)) if log_format == "json" else str
    stream = sys.stderr = _lossy(STDERR, words)
    set_log_level(level)
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
        wrapper_class=_BoundLogger,
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    if log_format == "json":
        handler.setFormatter(JsonFormatter(process))
        sys.stdout = _JsonLines(_lossy(STDOUT), process, "info")
        print_json(process)
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # no lines, but parts of one
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])
    log_uncaught()
    # It logs a traceback, with a stranger's bytes in it, for every bad UTF-8 frame.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def log_level() -> str:
    """Of our own lines, at this moment."""
    return _Leveled.level


def set_log_level(level: str) -> None:
    """From now on, for all of this process' loggers, however old. Unknown levels change nothing."""
    if level not in LEVELS:
        return
    _Leveled.level = level
    filtering = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    for name, method in vars(filtering).items():
        if not name.startswith("__"):
            setattr(_BoundLogger, name, method)


def print_json(process: str) -> None:
    """From now on each line that is printed on stderr is an event of this process."""
    sys.stderr = _JsonLines(_lossy(STDERR), process, "error")


class Losses:
    """Lines that the log of this process did not take: in all, and since it took the last one."""

    total = now = 0


class _LossyFile(io.FileIO):
    """What it cannot write is lost: the reader is gone, or the disk full.

    `words` makes a line of what is said about that, when there is room again.
    """

    words: Callable[[str], str] | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            if Losses.now and self.words is not None:
                lost = self.words(f"{Losses.now} lines of this log are lost: it took none")
                super().write(f"\n{lost}\n".encode())  # the last one may lack its end
                Losses.now = 0
            return super().write(data)
        except OSError:
            num_lines = bytes(data).count(b"\n")
            Losses.total += num_lines
            Losses.now += num_lines
            return memoryview(data).nbytes


class _JsonLines(io.TextIOBase):
    """A stream for code that prints: each line becomes an event, unless it is JSON."""

    def __init__(self, stream: io.TextIOWrapper, process: str, level: str) -> None:
        self._stream = stream
        self._process = process
        self._level = level
        self._line = ""

    @property
    # A property here, an attribute of the class that typeshed declares.
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                self._stream.write(as_json_line(line, self._process, self._level) + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _lossy(descriptor: int, words: Callable[[str], str] | None = None) -> io.TextIOWrapper:
    """A text stream to that descriptor whose writes never fail."""
    file = _LossyFile(descriptor, "w", closefd=False)
    file.words = words
    return io.TextIOWrapper(
        io.BufferedWriter(file), "utf-8", errors="backslashreplace", line_buffering=True
    )


def _name_process(process: str) -> structlog.typing.Processor:
    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    return add
