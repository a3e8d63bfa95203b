"""The core's log lines."""

import json
import logging
import sys

from engine.log import JsonFormatter


def test_a_line_is_one_json_object_with_the_field_names_of_the_other_processes() -> None:
    record = logging.LogRecord("engine.core", logging.INFO, "", 0, "loaded %d", (5,), None)
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["level"], line["process"]) == ("loaded 5", "info", "core")
    assert line["timestamp"].endswith("Z")


def test_an_exception_stays_on_the_same_line() -> None:
    try:
        raise ValueError("broken\nthing")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert "ValueError" in json.loads(text)["exception"]
