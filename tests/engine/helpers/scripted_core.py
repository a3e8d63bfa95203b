"""A core without a model: it answers hellos and pings, and otherwise does what a test tells it."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import zmq

from engine.config import EngineConfig
from engine.ipc import (
    AddRequest,
    ClientMessage,
    CoreMessage,
    Hello,
    Ping,
    Pong,
    Ready,
    SchedulerStats,
    SequenceOutput,
    StepOutputs,
    Utility,
    UtilityReply,
    decode_client_message,
    encode,
)
from tests.helpers.patience import PATIENCE

POLL_MS = 2

M = TypeVar("M")


def make_ready(address: str = "", **fields: Any) -> Ready:
    """What a core without a model says of itself; `fields` are those of `Ready`."""
    defaults: dict[str, Any] = {
        "epoch": 1,
        "pid": 0,
        "max_model_len": 1000,
        "num_blocks": 100,
        "block_size": 16,
        "vocab_size": 1000,
        "eos_token_ids": [0],
        "max_num_seqs": 8,
        "dtype": "float32",
        "attn_backend": "none",
        "pace": 0.0,
        "config": EngineConfig(model="", address=address, served_model_name=""),
    }
    return Ready(**(defaults | fields))


class ScriptedCore:
    """Binds `address` in a thread of its own. A `sleep` process stands for the core's process.

    `is_silent` stops it from answering anything, as SIGSTOP would; `loop_age_seconds` is what its
    pongs tell; `on_add` is called in its thread with each request, for cores that play alone.
    """

    def __init__(
        self, address: str, *, epoch: int = 1, max_model_len: int = 1000, num_blocks: int = 100
    ) -> None:
        self.address = address
        self.epoch = epoch
        self.is_silent = False
        self.loop_age_seconds = 0.0
        self.stats = SchedulerStats(0, 0, 0, num_blocks, num_blocks)
        self.on_add: Callable[[str, AddRequest], None] | None = None
        self.calls: list[Utility] = []  # in their order
        self.utilities: dict[str, Any] = {"num_unfinished": 0, "metrics": {"num_running": 0}}
        self._process = subprocess.Popen(["sleep", "1000"])
        self.ready = make_ready(
            address,
            epoch=epoch,
            pid=self._process.pid,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
        )
        self._owners: dict[str, str] = {}  # request id → client id
        self._inbox: SimpleQueue[ClientMessage] = SimpleQueue()
        self._outbox: SimpleQueue[tuple[str, CoreMessage | bytes]] = SimpleQueue()
        self._is_closing = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(address)
        self._thread = threading.Thread(target=self._run, name="scripted-core")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def receive(self, kind: type[M]) -> M:
        """The next message, which must be of this kind. Blocks for a few seconds at most."""
        message = self._inbox.get(timeout=PATIENCE)
        assert isinstance(message, kind), message
        return message

    def received(self) -> Iterator[ClientMessage]:
        """What has come and was not received, in order."""
        with contextlib.suppress(Empty):
            while True:
                yield self._inbox.get_nowait()

    def emit(
        self, request_id: str, *token_ids: int, finish: str | None = None, **more: Any
    ) -> None:
        """Send what one step did for one request."""
        self.emit_all([SequenceOutput(request_id, list(token_ids), finish_reason=finish, **more)])

    def emit_all(self, outputs: list[SequenceOutput], epoch: int | None = None) -> None:
        """Send one step's outputs to the client whose requests they are."""
        epoch = self.epoch if epoch is None else epoch
        client_id = self._owners[outputs[0].request_id]
        self._outbox.put((client_id, StepOutputs(epoch, 0, outputs, self.stats)))

    def send(self, message: CoreMessage | bytes) -> None:
        """Send to every client that has a request here; bytes are sent as they are."""
        for client_id in set(self._owners.values()):
            self._outbox.put((client_id, message))

    def send_to(self, client_id: str, message: CoreMessage) -> None:
        self._outbox.put((client_id, message))

    def kill(self) -> None:
        """Die as by SIGKILL: without a word."""
        self.close()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()
        self._process.kill()
        self._process.wait()

    def _run(self) -> None:
        while not self._is_closing.is_set():
            if self._socket.poll(POLL_MS):
                identity, payload = self._socket.recv_multipart()
                if not self.is_silent:
                    self._handle(identity.decode(), decode_client_message(payload))
            while not self._outbox.empty() and not self.is_silent:
                client_id, message = self._outbox.get()
                payload = message if isinstance(message, bytes) else encode(message)
                self._socket.send_multipart([client_id.encode(), payload])
        self._socket.close(linger=0)
        self._context.term()

    def _handle(self, client_id: str, message: ClientMessage) -> None:
        match message:
            case Hello():
                self._outbox.put((client_id, self.ready))
            case Ping():
                pong = Pong(message.number, self.epoch, self.loop_age_seconds, self.stats)
                self._outbox.put((client_id, pong))
            case Utility():
                self.calls.append(message)
                value = self.utilities.get(message.name)
                if value is not None:
                    self._outbox.put((client_id, UtilityReply(message.call_id, value)))
            case AddRequest():
                self._owners[message.request_id] = client_id
                self._inbox.put(message)
                if self.on_add is not None:
                    self.on_add(client_id, message)
            case _:
                self._inbox.put(message)
