"""`StatLoggers`: who is told the core's load by `do_log_stats()`."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine.ipc import SchedulerStats

logger = logging.getLogger(__name__)

StatLoggerFactory = Callable[[Any, int], Any]  # (vllm_config, engine index) → logger


class StatLoggers:
    """Loggers by name. What a logger must be able to do is up to where it was written for:

    logging.Logger          one line is logged with level INFO
    with `record` and `log` `record(scheduler_stats=…, iteration_stats=None)`, then `log()`
    with `log` alone        `log(stats)`
    """

    def __init__(self, log_lines: bool = True) -> None:
        self._loggers: dict[str, Any] = {"log": logger} if log_lines else {}

    def add(self, name: str, stat_logger: Any) -> None:
        """KeyError if the name is taken, TypeError for what is no logger."""
        if name in self._loggers:
            raise KeyError(f"there is a logger {name!r} already")
        if not callable(getattr(stat_logger, "log", None)):
            raise TypeError(f"a {type(stat_logger).__name__} has no method log()")
        self._loggers[name] = stat_logger

    def add_all(
        self, given: Mapping[str, Any] | Iterable[StatLoggerFactory] | None, vllm_config: Any
    ) -> None:
        """Loggers by name, or factories that make them."""
        if isinstance(given, Mapping):
            for name, stat_logger in given.items():
                self.add(name, stat_logger)
        else:
            for number, factory in enumerate(given or ()):
                self.add(f"stat_loggers[{number}]", factory(vllm_config, 0))

    def remove(self, name: str) -> None:
        """KeyError if there is no such logger."""
        if self._loggers.pop(name, None) is None:
            raise KeyError(f"there is no logger {name!r}")

    def log(self, stats: SchedulerStats) -> None:
        """Tell all of them."""
        for stat_logger in list(self._loggers.values()):
            if isinstance(stat_logger, logging.Logger):
                stat_logger.info(
                    "%d running, %d waiting with %d tokens, %d of %d blocks free",
                    stats.num_running,
                    stats.num_waiting,
                    stats.num_waiting_tokens,
                    stats.num_blocks_free,
                    stats.num_blocks_total,
                )
            elif hasattr(stat_logger, "record"):
                stat_logger.record(scheduler_stats=stats, iteration_stats=None)
                stat_logger.log()
            else:
                stat_logger.log(stats)
