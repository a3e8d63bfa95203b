"""One web process: `python -m server.worker`, started by the supervisor, never by hand.

Its configuration is the first line on stdin, and the rest of stdin is its tie to the supervisor:
each further line is a command, and the end of the stream means that the supervisor is gone. It
prints one line: {"ready": true} when it serves, or {"ready": false, "error": "one line"} when it
cannot, because of the model; where there are several models, further ones say which it uses. That
it ends when it should is the business of `tether.py`.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NoReturn

import msgspec
import structlog
import uvloop

from server import __version__
from server.config.worker import EXIT_MODEL, EXIT_REFUSED, WorkerConfig
from server.engines.client import UnsupportedModelError, ValidationError
from server.engines.joining import learn, open_models
from server.engines.tracing import open_tracing
from server.telemetry.logs import configure_logs
from server.worker.app import Worker
from server.worker.tether import SupervisorLine, Tether, leave
from server.worker.uvicorn_server import Server, uvicorn_config
from sessions.background import start
from sessions.model.errors import StoreRefused, StoreUnavailable
from sessions.store.store import SessionStore

if TYPE_CHECKING:
    from server.engines.tracing import Tracing

logger = structlog.get_logger("server")

YOUNG_OBJECTS = 10_000  # more of them are looked through for garbage; Python's own is 700
# So often that is done before the survivors are looked through as well, and that before all are.
# A connection leaves no circles, and all objects of 10,000 would halt everybody for 0.5 s.
OLDER_GENERATIONS = 2, 100


async def run(config: WorkerConfig, tether: Tether) -> int:
    """Serve until asked to stop. Returns the exit code."""
    commands = await _open_stdin()
    store = _store(config)
    try:
        await store.verify()
    except StoreRefused as error:
        return _refuse(error)
    except StoreUnavailable as error:  # it may be starting, too: `Health` tries again
        logger.warning("store unavailable", error=str(error))
    try:
        tracing = _open_tracing(config)
    except ValidationError as error:
        return await _cannot_serve(error, store)
    line = SupervisorLine(sys.stdout.fileno())
    try:
        models = open_models(
            config.models,
            tell=line.tell,
            on_core_state=lambda state, model: worker.runs.tell_core_state(state, model),
            tracing=tracing,
            max_waiting=config.settings.max_num_queued_reqs,
        )
    except UnsupportedModelError as error:
        return await _cannot_serve(error, store)
    if models.are_many:
        await learn(models, [status for status in config.models if status.options is not None])
    worker = Worker(config, store, models, tracing)
    models.begin()
    settings = config.settings
    server = Server(uvicorn_config(worker.app, settings.intervals.ping, settings.proxies))
    listener = socket.socket(fileno=config.listen_fd)
    serving = start(server.serve(sockets=[listener]))
    drain_seconds = settings.intervals.drain

    def on_signal() -> None:
        (worker.hurry if worker.stop_asked.is_set() else worker.stop_asked).set()

    loop = asyncio.get_running_loop()
    await server.ready.wait()
    tether.serve_with(on_signal, loop, drain_seconds)
    _settle_heap()
    line.tell({"ready": True})
    for replica in config.exited:
        worker.hub.spawn(worker.takeover.adopt(replica))
    orphaned = await _obey(commands, worker, serving)
    tether.expect_end(drain_seconds)
    for open_server in server.servers:
        open_server.close()  # no new connections; those that are open hear of it, and end first
    await worker.drain(0.0 if orphaned else drain_seconds, worker.hurry, is_crash=orphaned)
    server.should_exit = True
    await serving
    models.shutdown()
    if tracing is not None:
        await asyncio.to_thread(tracing.close)
    return 0 if worker.refusal is None else _refuse(worker.refusal)


async def _obey(
    commands: AsyncIterator[bytes], worker: Worker, serving: asyncio.Task[None]
) -> bool:
    """Carry out the supervisor's commands until it says stop; True if it died instead."""

    async def read() -> None:
        async for line in commands:
            worker.hub.spawn(worker.control.obey(msgspec.json.decode(line)))

    reading = start(read())
    stopping = start(worker.stop_asked.wait())
    await asyncio.wait({reading, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    orphaned = reading.done() and not worker.stop_asked.is_set()
    for task in (reading, stopping):
        task.cancel()
    return orphaned


async def _open_stdin() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _settle_heap() -> None:
    """Spare what is loaded by now from garbage collection, which else halts all for 0.1 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *OLDER_GENERATIONS)


def _store(config: WorkerConfig) -> SessionStore:
    settings = config.settings
    return SessionStore.connect(
        config.redis_url,
        secret=settings.redis_secret,
        timeout_seconds=settings.redis_timeout_seconds,
        lease_seconds=settings.intervals.lease,
        idle_seconds=settings.limits.session_idle_seconds,
        quotas=settings.limits.quotas,
    )


def _open_tracing(config: WorkerConfig) -> "Tracing | None":
    endpoint = config.settings.otlp_endpoint
    if endpoint is None:
        return None
    os.environ.update(config.settings.otlp_headers)
    who = {"service.version": __version__, "service.instance.id": config.replica}
    return open_tracing(endpoint, who)


async def _cannot_serve(error: ValidationError, store: SessionStore) -> int:
    print(json.dumps({"ready": False, "error": str(error)}), flush=True)
    await store.close()
    return EXIT_MODEL


def _refuse(error: StoreRefused) -> int:
    logger.error("the session store must not be used", error=str(error))
    return EXIT_REFUSED


def main() -> NoReturn:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # log also to a terminal that has `stty tostop`
    tether = Tether()
    config = msgspec.json.decode(sys.stdin.buffer.raw.readline(), type=WorkerConfig)  # type: ignore[union-attr]
    settings = config.settings
    configure_logs(settings.log_level, settings.effective_log_format, config.replica)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(run(config, tether))
    leave(status)


if __name__ == "__main__":
    main()
