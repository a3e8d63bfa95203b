"""`StatLoggers`: what is called with each batch of outputs, and what logs in `do_log_stats()`."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from engine.client.requests.iteration_stats import IterationStats
from engine.ipc import SchedulerStats

logger = logging.getLogger(__name__)

StatLoggerFactory = Callable[[Any, int], Any]  # (vllm_config, engine index) → logger

LATER_ARGUMENTS = {"mm_cache_stats": None, "engine_idx": 0}  # of `record`, as vLLM grew


class StatLoggers:
    """Loggers by name. What a logger must be able to do is up to where it was written for:

    logging.Logger          one line is logged by `do_log_stats`, with level INFO
    with `record` and `log` `record(scheduler_stats, iteration_stats)` with each batch of outputs,
                            with `mm_cache_stats` and `engine_idx` if it takes them; and `log()` by
                            `do_log_stats`. vLLM's own kind: `log_engine_initialized()`, if it has
                            that, comes first
    with `log` alone        `log(stats)` by `do_log_stats`, if the load is known

    One whose `record` fails is not called again: the streams go on.
    """

    def __init__(self, log_lines: bool = True) -> None:
        self._loggers: dict[str, Any] = {"log": logger} if log_lines else {}
        self._recorders: dict[str, Callable[..., Any]] = {}

    @property
    def has_recorders(self) -> bool:
        """Whether anybody wants to know of batches of outputs."""
        return bool(self._recorders)

    def add(self, name: str, stat_logger: Any) -> None:
        """KeyError if the name is taken, TypeError for what is no logger."""
        if name in self._loggers:
            raise KeyError(f"there is a logger {name!r} already")
        if not callable(getattr(stat_logger, "log", None)):
            raise TypeError(f"a {type(stat_logger).__name__} has no method log()")
        self._loggers[name] = stat_logger
        if hasattr(stat_logger, "record"):
            recorder = stat_logger.record
            self._recorders[name] = partial(recorder, **_later_arguments(recorder))
        if hasattr(stat_logger, "log_engine_initialized"):
            stat_logger.log_engine_initialized()

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
        self._recorders.pop(name, None)

    def record(self, stats: SchedulerStats | None, iteration: IterationStats) -> None:
        """Tell those who keep records. Never raises."""
        for name, recorder in list(self._recorders.items()):
            try:
                recorder(stats, iteration)
            except Exception:  # of somebody else's code, in the middle of everybody's streams
                logger.exception("stat logger %r has failed, and receives nothing more", name)
                del self._recorders[name]

    def log(self, stats: SchedulerStats | None) -> None:
        """Have all of them log."""
        for stat_logger in list(self._loggers.values()):
            if hasattr(stat_logger, "record"):
                stat_logger.log()
            elif stats is None:
                continue
            elif isinstance(stat_logger, logging.Logger):
                stat_logger.info(
                    "%d running, %d waiting with %d tokens, %d of %d blocks free",
                    stats.num_running,
                    stats.num_waiting,
                    stats.num_waiting_tokens,
                    stats.num_blocks_free,
                    stats.num_blocks_total,
                )
            else:
                stat_logger.log(stats)


def _later_arguments(recorder: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(recorder).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {k: v for k, v in LATER_ARGUMENTS.items() if takes_all or k in parameters}
