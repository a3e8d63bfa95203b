"""What the supervisor sends a worker at its start, and the worker's exit codes."""

from typing import TYPE_CHECKING

import msgspec

from server.config.intervals import Intervals
from server.config.limits import Limits
from server.config.models import ModelStatus
from server.config.shown import ShownSetting

if TYPE_CHECKING:
    from server.config.settings import Settings  # with pydantic, which no worker needs

EXIT_MODEL = 2  # the model's folder cannot be served
EXIT_REFUSED = 3  # the store must not be used: restarting would not help


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `Settings` that workers need, each under its name there."""

    redis_secret: str | None
    redis_timeout_seconds: float
    limits: Limits
    intervals: Intervals
    max_num_queued_reqs: int  # 0: any number
    origins: tuple[str, ...]
    proxies: tuple[str, ...]
    is_loopback: bool
    hide_observers: bool
    log_level: str
    effective_log_format: str
    otlp_endpoint: str | None  # None: no tracing
    otlp_headers: dict[str, str]  # variables of OpenTelemetry, as they were in the environment
    lora_dir: str | None  # absolute; None: no adapters

    @classmethod
    def of(cls, settings: "Settings") -> "WorkerSettings":
        """Read them off, by name. None has a default here: one that is missing is an error."""
        return msgspec.convert(settings, cls, from_attributes=True)


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of a supervisor get: the settings, and what it adds to them."""

    settings: WorkerSettings
    listen_fd: int
    redis_url: str
    models: tuple[ModelStatus, ...]  # as they are now, the default one first
    token: str
    admin_token: str
    server_started_at: int  # the supervisor, ms since 1970
    shown_settings: tuple[ShownSetting, ...] = ()  # for admins
    redis_folder: str | None = None  # with the files of our own; None: it is somebody else's
    tools_path: str | None = None  # where the tool process listens; None: there are no tools


class WorkerConfig(SharedConfig, frozen=True, kw_only=True):
    """What the supervisor sends a worker on stdin."""

    replica: str
    exited: tuple[str, ...] = ()  # workers that died before this one was started
