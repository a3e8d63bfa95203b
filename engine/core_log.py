"""The core's log on stderr: lines for a person, or JSON for a machine; never a word of a user's."""

import json
import logging
import sys
import time

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One object per line, with the same field names as the web workers' logs."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": f"{moment}.{int(record.msecs):03d}Z",
            "process": "core",
            "logger": record.name,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_log(level: str, log_format: str) -> None:
    """Set up the root logger once, at the start of the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_FORMAT)
    )
    logging.basicConfig(level=level, handlers=[handler])
