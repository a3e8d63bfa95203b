"""The lines of the log, which the server and the engine's core write alike."""

from engine.log import JsonFormatter as JsonFormatter
from engine.log import as_json_line as as_json_line
from engine.log import log_uncaught as log_uncaught
