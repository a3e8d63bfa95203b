"""What the supervisor sends a worker at its start, and the worker's exit codes."""

from typing import Any

import msgspec

from server.config.intervals import Intervals
from server.config.limits import Limits

EXIT_MODEL = 2  # the model's folder cannot be served
EXIT_REFUSED = 3  # the store must not be used: restarting would not help


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor sends a worker on stdin."""

    replica: str
    listen_fd: int
    redis_url: str
    redis_secret: str | None = None
    redis_timeout_seconds: float
    engine_kind: str
    engine_options: dict[str, Any]  # only the kind itself reads them
    token: str
    admin_token: str
    limits: Limits
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    check_host: bool = True
    hides_observers: bool = False
    server_started_at: int = 0  # the supervisor, ms since 1970
    intervals: Intervals = Intervals()
    log_level: str = "info"
    log_format: str = "json"
    otlp_endpoint: str | None = None  # None: no tracing
    exited: tuple[str, ...] = ()  # workers that died before this one was started
