"""The core's log on stderr: lines for a person, or JSON for a machine; never a word of a user's.

Where the log is JSON, every line is: `as_json_line` wraps what others write.
"""

import json
import logging
import sys
import threading
import time
import types

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

logger = logging.getLogger("uncaught")


class JsonFormatter(logging.Formatter):
    """One object per line, with the same field names in all processes."""

    def __init__(self, process: str = "core") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": _timestamp(record.created),
            "process": self._process,
            "logger": record.name,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)


def configure_log(level: str, log_format: str) -> None:
    """Set up the root logger once, at the start of the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_FORMAT)
    )
    logging.basicConfig(level=level, handlers=[handler])
    log_uncaught()


def log_uncaught() -> None:
    """What Python prints by itself goes to the log: warnings, and exceptions nobody catches."""
    logging.captureWarnings(True)

    def of_process(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            logger.critical("uncaught exception", exc_info=(kind, error, traceback))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            name = args.thread.name if args.thread else "unknown"
            logger.critical("uncaught exception in thread %s", name, exc_info=args.exc_value)

    def of_nobody(args: "sys.UnraisableHookArgs") -> None:
        logger.error("ignored exception", exc_info=args.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = of_process, of_thread, of_nobody


def as_json_line(text: str, process: str, level: str = "warning") -> str:
    """A line of JSON as it is, anything else as the event of one. Without the end of the line."""
    if text.startswith("{"):
        try:
            json.loads(text)
        except ValueError:
            pass
        else:
            return text
    line = {
        "event": text,
        "level": level,
        "timestamp": _timestamp(time.time()),
        "process": process,
        "logger": "output",
    }
    return json.dumps(line)


def _timestamp(seconds: float) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{moment}.{int(seconds * 1000) % 1000:03d}Z"
