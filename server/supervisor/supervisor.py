"""`parley serve`: starts Redis, the engine core and the web workers, and restarts what dies.

A plain loop in the main thread, woken by signals: Redis must be forked from here (it dies with the
thread that forked it), and nothing else competes for attention. The children hold pipes to this
process, so a `kill -9` of it leaves nothing behind.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import urllib.request
from types import FrameType
from typing import Any

import structlog
from rich.console import Console
from rich.markup import escape

from server.config.engines import parse_engines
from server.config.settings import Settings, read_or_create_secret
from server.config.shown import shown_settings
from server.config.worker import SharedConfig, WorkerSettings
from server.engines.client import ValidationError
from server.engines.kinds import chosen_entry, chosen_kind
from server.engines.managed import EngineRefused, EngineSetupError, ManagedEngine
from server.engines.tracing import check_endpoint
from server.supervisor.models import ModelKeepers
from server.supervisor.workers import StartError, WorkerKeeper
from server.tools.configuration import ToolsConfigError, read_tools_file
from server.tools.keeper import ToolKeeper
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import EmbeddedRedisError, StoreRefused, StoreUnavailable

logger = structlog.get_logger("server")

TICK_SECONDS = 0.5
SEND_BUFFER_BYTES = 64 * 1024
UNSENT_BYTES = 4096  # that the kernel keeps beyond what is on its way: more waits in the outbox
# A peer that acknowledges or takes nothing for so long is gone. A reader that is only slow gets
# close 4008 before that, after 15 s.
UNACKED_MS = 30_000
BACKLOG = 1024
STOP_GRACE_SECONDS = 5.0
# For what blocks the main thread when a signal comes before we serve; then the process is ended.
START_GRACE_SECONDS = 20.0
EXIT_REFUSED = 2
LAST_WORDS_SECONDS = 0.5  # for the workers to end the answers of an engine that is gone for good


class Supervisor:
    """Owns every child. `run` blocks until a signal, and returns the exit code."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._data = settings.data_dir.absolute()
        self._redis: EmbeddedRedis | None = None
        self._models: ModelKeepers | None = None
        self._workers: WorkerKeeper | None = None
        self._tools: ToolKeeper | None = None
        is_json = settings.effective_log_format == "json"
        self._console = None if is_json else Console(stderr=True, highlight=False, soft_wrap=True)
        self._signals = 0
        self._listener: socket.socket | None = None
        self._announced = ""
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        status = self._run()
        if self._models is not None and self._models.is_preparing:
            sys.stderr.flush()
            os._exit(status)  # Python's end would wait for the threads of a download
        return status

    def _run(self) -> int:
        try:
            with self._catch_signals():
                self._start()
                return self._watch()
        except (StartError, EmbeddedRedisError, EngineSetupError) as error:
            for line in str(error).split("\n"):
                text = f"[bold red]parley:[/] {escape(line)}"
                self._tell(text, "not started", "error", error=line)
            return EXIT_REFUSED
        finally:
            self._stop()

    def _tell(self, text: str, event: str, level: str = "info", **fields: object) -> None:
        """Tell the operator: in words on a terminal, as an event where the log is JSON."""
        if self._console is None:
            getattr(logger, level)(event, **fields)
        else:
            self._console.print(text)

    # ---- start ----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._check_tracing()
        self._take_tools()
        self._prepare_data_dir()
        self._listener = self._listen()
        entry = chosen_entry(self._settings)
        models = self._models = ModelKeepers(
            self._settings,
            entry,
            chosen_kind(self._settings),
            wake=lambda: self._wake(b"c"),
            on_change=self._tell_models,
        )
        engine = models.prepare_default()
        self._raise_if_interrupted()
        models.start_default()  # first of all: it takes the longest
        redis_url = self._start_redis()
        self._workers = WorkerKeeper(
            self._shared_config(redis_url, models), on_exit=self._forget_worker
        )
        name = engine.model_name
        loading = f"[dim]·[/] loading the model [bold]{name}[/] …"
        self._tell(loading, "loading the model", model=name)
        for _ in range(self._settings.workers):
            self._workers.start()
        self._await_engine(engine, self._workers)
        models.watch()
        self._workers.await_ready(self._raise_if_interrupted)
        models.look_ahead()
        self._announce(name, self._workers.config.token)

    def _check_tracing(self) -> None:
        if self._settings.otlp_endpoint is not None:
            try:
                check_endpoint(self._settings.otlp_endpoint, "otlp_endpoint")
            except ValidationError as error:
                raise StartError(str(error)) from None

    def _take_tools(self) -> None:
        """Nothing is started by that: it begins with their first use."""
        path, settings = self._settings.tools, self._settings
        if path is None:
            return
        try:
            servers = read_tools_file(path.expanduser().absolute())
        except ToolsConfigError as error:
            raise StartError("\n".join(error.lines)) from None
        if servers:
            self._tools = ToolKeeper(servers, settings.log_level, settings.effective_log_format)

    def _prepare_data_dir(self) -> None:
        try:
            self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._data.chmod(0o700)
        except OSError as error:
            raise StartError(f"cannot use the data directory {self._data}: {error}") from None

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Inherited by accepted sockets: a reader that stopped is found, and little waits for
            # it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(f"cannot listen on {host}:{port}: {reason}") from None
        return listener

    def _start_redis(self) -> str:
        if self._settings.redis_url is not None:
            self._check_redis(self._settings.redis_url)
            return self._settings.redis_url
        binary = os.environ.get("PARLEY_REDIS_SERVER") or None
        self._redis = EmbeddedRedis(self._data / "redis", binary=binary)
        self._redis.start()
        folder = str(self._data / "redis")
        self._tell(f"[dim]·[/] Redis is up, in {folder}", "redis is up", folder=folder)
        return self._redis.url

    def _check_redis(self, url: str) -> None:
        """Refuse in one line what every worker would refuse; wait for what is only away."""
        import asyncio  # with the client of Redis it takes as long as all the rest of this process

        try:
            asyncio.run(_verify(url, self._settings))
        except StoreRefused as error:
            raise StartError(str(error)) from None
        except StoreUnavailable as error:
            self._tell(
                f"[bold yellow]![/] {escape(str(error))}; serving begins when it is back",
                "redis is away, serving begins when it is back",
                "warning",
                error=str(error),
            )

    def _shared_config(self, redis_url: str, models: ModelKeepers) -> SharedConfig:
        assert self._listener is not None
        settings = self._settings
        return SharedConfig(
            settings=WorkerSettings.of(settings),
            listen_fd=self._listener.fileno(),
            redis_url=redis_url,
            models=models.statuses,
            token=settings.token or read_or_create_secret(self._data / "token"),
            admin_token=settings.admin_token or read_or_create_secret(self._data / "admin-token"),
            server_started_at=time.time_ns() // 1_000_000,
            shown_settings=shown_settings(settings),
            redis_folder=None if self._redis is None else str(self._data / "redis"),
            tools_path=None if self._tools is None else str(self._tools.path),
        )

    def _await_engine(self, engine: ManagedEngine, workers: WorkerKeeper) -> None:
        while engine.is_starting:
            self._sleep()
            self._raise_if_interrupted()
            assert self._models is not None
            self._hear_workers(self._models, workers)  # answers of before may need other models
            self._models.watch()
            self._watch_tools()
            workers.look()  # one that cannot serve this model says so long before the engine
        if engine.start_error is not None:
            what = "" if engine.is_refusal else "the engine did not start: "
            raise StartError(f"{what}{engine.start_error}")

    def _raise_if_interrupted(self) -> None:
        if self._signals:
            raise StartError("interrupted")

    def _announce(self, model: str, token: str) -> None:
        url = base_url(self._settings.host, self._port)
        self._announced = json.dumps({"url": url, "pid": os.getpid()})
        (self._data / "server.json").write_text(self._announced)
        ready = f"[dim]·[/] model [bold]{model}[/] is ready{self._pace_note()}"
        assert self._models is not None
        others = [status.name for status in self._models.statuses[1:]]
        if others:
            ready += f"; {escape(', '.join(others))}: loaded when asked for"
        pace = self._pace
        self._tell(ready, "the model is ready", model=model, pace=pace)
        try:
            login = request_login_url(url, token)
        except StartError:
            if self._redis is not None:
                raise
            waits = "\n  [bold yellow]Parley waits for Redis.[/] Then: `parley login`\n"
            self._tell(waits, "parley waits for redis", "warning", url=url)
            return
        self._tell(
            f"\n  [bold green]Parley is running.[/] Open  [bold]{login}[/]\n"
            "  [dim]The link works once; `parley login` prints another. Ctrl-C stops.[/]\n",
            "parley is running",
            url=url,
            login_url=login,
        )

    @property
    def _pace(self) -> float:
        return self._settings.pace_of(self._settings.models[0])

    def _pace_note(self) -> str:
        pace = self._pace
        if not pace:
            return ""
        return f", paced to {pace:g} tokens/s per answer (--pace 0 turns that off)"

    @property
    def _port(self) -> int:
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    # ---- watch ----------------------------------------------------------------------------------

    def _watch(self) -> int:
        assert self._models is not None and self._workers is not None
        while not self._signals:
            self._sleep()
            if not self._serve(self._models, self._workers):
                return self._give_up(self._models, self._workers)
            self._workers.watch()
        return 0

    def _serve(self, models: ModelKeepers, workers: WorkerKeeper) -> bool:
        """Keep up what answers need besides workers. False when the only model does not start any
        more.
        """
        self._watch_redis(workers)
        self._hear_workers(models, workers)
        self._watch_tools()
        return models.watch()

    def _give_up(self, models: ModelKeepers, workers: WorkerKeeper) -> int:
        """The only model does not start any more."""
        engine = models.default_engine
        failed = f"the engine failed to start {engine.num_failed_starts} times in a row"
        why = str(engine.start_error)
        text = f"[bold red]parley:[/] {failed}: {escape(why)}"
        self._tell(text, failed, "error", error=why)
        workers.tell("engine_gone")
        # They do not answer, so there is no event to wait for; what is said by then is heard.
        time.sleep(LAST_WORDS_SECONDS)
        return 1

    def _hear_workers(self, models: ModelKeepers, workers: WorkerKeeper) -> None:
        """Which models they use and want, and which engines."""
        for replica, line in workers.hear():
            match line:
                case {"type": "uses", "models": list(names)}:
                    models.note_uses(replica, names)
                case {"type": "load", "model": str(name)}:
                    models.load(name)
                case {"type": "unload", "model": str(name)}:
                    models.unload(name)
                case {"number": int(number)}:
                    workers.answer(replica, number, self._change_engines(models, line))

    def _change_engines(self, models: ModelKeepers, line: dict[str, Any]) -> str | None:
        """As a worker asks for an administrator; why not, if so."""
        try:
            match line:
                case {"type": "drain_engine", "engine": str(name), "is_draining": bool(drains)}:
                    moves = line.get("must_move") is True
                    model = line.get("model")
                    models.drain_engine(name, model, is_draining=drains, must_move=moves)
                case {"type": "add_engine", "engine": str(text)}:
                    (entry,) = parse_engines([text])
                    models.add_engine(entry.with_files_in(self._data / "engines"))
                case {"type": "remove_engine", "engine": str(name)}:
                    models.remove_engine(name, line.get("model"))
                case {"type": "restart_engine", "engine": str(name)}:
                    models.restart_engine(name, line.get("model"))
        except (EngineRefused, ValueError) as refusal:
            logger.warning("engines are not changed", asked=line["type"], problem=str(refusal))
            return str(refusal)
        return None

    def _forget_worker(self, replica: str) -> None:
        assert self._models is not None
        self._models.note_uses(replica, ())

    def _tell_models(self) -> None:
        if self._models is not None and self._workers is not None:
            self._workers.tell_models(self._models.statuses)

    def _sleep(self) -> None:
        due = [it.due for it in (self._models, self._workers, self._tools) if it is not None]
        left = min([TICK_SECONDS, *(at - time.monotonic() for at in due if at is not None)])
        voices = [] if self._workers is None else self._workers.voices
        voices += [] if self._tools is None else self._tools.descriptors
        woken = select.select([self._wake_read, *voices], [], [], max(0.0, left))[0]
        if self._wake_read in woken:
            os.read(self._wake_read, 4096)

    def _watch_tools(self) -> None:
        if self._tools is not None:
            self._tools.watch()

    def _watch_redis(self, workers: WorkerKeeper) -> None:
        if self._redis is not None and (status := self._redis.poll()) is not None:
            logger.error("redis died", status=status)
            workers.tell("store_exited")
            try:
                self._redis.start()
                logger.warning("redis is up again")
            except EmbeddedRedisError as error:
                logger.error("redis did not start", error=str(error))

    # ---- stop -----------------------------------------------------------------------------------

    def _catch_signals(self) -> "_Signals":
        return _Signals(self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals += 1
            if not self._announced:
                self._limit_start()
        self._wake(b"s")

    def _limit_start(self) -> None:
        """A start that hangs ends, too. What it has started sees that we are gone."""

        def end() -> None:
            if not self._announced:
                if self._models is not None:
                    self._models.clean_up()
                os._exit(EXIT_REFUSED)

        timer = threading.Timer(START_GRACE_SECONDS, end)
        timer.daemon = True
        timer.start()

    def _wake(self, cause: bytes) -> None:
        os.write(self._wake_write, cause)

    def _stop(self) -> None:
        """Workers first, so that answers can finish; a second signal makes it quick."""
        models, workers = self._models, self._workers
        if workers is not None and models is not None:
            if workers.is_alive and self._announced:
                self._tell(
                    "[dim]·[/] stopping: running answers may finish (Ctrl-C again: at once)",
                    "stopping, running answers may finish",
                )
            first = self._signals
            drain = self._settings.intervals.drain if self._announced else 0.0

            def meanwhile() -> None:  # an engine that is away comes back for its answers
                if self._announced and not self._serve(models, workers):
                    workers.tell("engine_gone")

            workers.stop(
                drain + STOP_GRACE_SECONDS,
                is_hurried=lambda: self._signals > first,
                meanwhile=meanwhile,
            )
        if self._tools is not None:
            self._tools.stop()
        if models is not None:
            models.stop()
        if self._redis is not None:
            self._redis.stop()
        if self._listener is not None:
            self._listener.close()
        self._retract()

    def _retract(self) -> None:
        """Remove `server.json`, but not another server's on the same data directory."""
        file = self._data / "server.json"
        with contextlib.suppress(OSError):
            if file.read_text() == self._announced:
                file.unlink()


class _Signals:
    """Handlers for the time of a `with` block; the loop looks at what they counted."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self, handler: "signal._HANDLER") -> None:
        self._handler = handler

    def __enter__(self) -> None:
        for number in self.NUMBERS:
            signal.signal(number, self._handler)

    def __exit__(self, *_: object) -> None:
        """They stay: a second Ctrl-C during the stop is counted, too."""


def base_url(host: str, port: int) -> str:
    """Where clients on this machine connect."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def request_login_url(url: str, token: str) -> str:
    """Ask the running server for a one-time login URL. Raises `StartError`."""
    request = urllib.request.Request(
        f"{url}/v1/login-codes", method="POST", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return url + str(json.load(answer)["path"])
    except (OSError, ValueError, KeyError) as error:
        raise StartError(f"no login code from {url}: {error}") from None


async def _verify(url: str, settings: Settings) -> None:
    from sessions.store.store import SessionStore

    store = await SessionStore.open(
        url, secret=settings.redis_secret, timeout_seconds=settings.redis_timeout_seconds
    )
    await store.close()
