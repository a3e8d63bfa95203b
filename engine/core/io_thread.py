"""`IoThread`: the core's end of its sockets, in a thread of its own.

ZeroMQ sockets belong to one thread, and the step loop is busy for a whole forward pass at a time;
so this thread receives, answers hellos and pings at once, and sends what the step loop leaves in
its outbox. The step loop sees two plain queues:

    inbox   everything in the order of arrival
    aborts  aborts once more, for the moment between forward pass and update: an abort that arrives
            while the last step of its request runs still wins

Nothing that a peer sends or fails to read may end this thread: a core that hears nobody is dead.

Clients of other machines come by a door of their own (`doors.py`). Of their processes nothing is
known here: what is silent for long has gone.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec
import zmq

from engine.config import FarDoor
from engine.core.callers import LOOK_SECONDS
from engine.core.doors import Door, Gatekeeper, Mail, open_far, open_local
from engine.far.calls import LORA
from engine.far.sizes import check_size
from engine.ipc import (
    PROTOCOL_VERSION,
    Abort,
    AddRequest,
    ClientMessage,
    CoreMessage,
    Dead,
    Hello,
    Ping,
    Pong,
    Ready,
    SequenceOutput,
    StepOutputs,
    Utility,
    UtilityReply,
    decode_client_message,
    encode,
)

logger = logging.getLogger(__name__)

MAX_BACKLOG_BYTES = 64 * 1024 * 1024  # of one client; beyond it the client counts as dead
SILENCE_SECONDS = 30.0  # without a word of a client, which pings every second: it has stopped
FAR_SILENCE_SECONDS = 15.0  # of one on another machine, which has given us up by then
RETRY_MS = 10  # while a client's pipe is full
# Of one door's messages that are taken in one turn; after that outputs are sent, and the other door
# has its turn. libzmq gives the connections of a door turns by itself, message by message.
TURN_MESSAGES = 64
TURN_BYTES = 1 << 20
SPLIT_BYTES = 1 << 20  # of a step's outputs; a client reads several messages with pauses between
REFUSED = "refused_from_afar"  # the code of an error


@dataclass(frozen=True, slots=True)
class ClientGone:
    """In the inbox: this client is dead, unreachable or talks nonsense."""

    client_id: str


@dataclass(frozen=True, slots=True)
class ClientSilent:
    """In the inbox: this client may be dead. Its requests end, and it hears so if it wakes up."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """In the inbox: leave the step loop."""


@dataclass(frozen=True, slots=True)
class Woken:
    """In the inbox: a thread of our own has taken memory again, or has failed to."""


@dataclass(frozen=True, slots=True)
class GrammarsReady:
    """In the inbox: sequences that have waited for their grammars need not wait any more."""


InboxItem = tuple[str, ClientMessage] | ClientGone | ClientSilent | Shutdown | Woken | GrammarsReady


@dataclass(slots=True)
class _Client:
    door: Door
    identity: bytes
    last_heard: float  # time.monotonic()
    key: str = ""  # of who comes from another machine
    pidfd: int | None = None
    is_silent: bool = False
    backlog: deque[bytes] = field(default_factory=deque)
    num_backlog_bytes: int = 0


class IoThread(threading.Thread):
    """Binds `address` when it is built; `start()` lets clients in; `close()` ends it.

    With `far` clients of other machines come as well. Raises ValueError if they cannot.
    """

    def __init__(
        self,
        address: str,
        ready: Ready,
        pong: Callable[[Ping], Pong],
        *,
        far: FarDoor | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        far_silence_seconds: float = FAR_SILENCE_SECONDS,
    ) -> None:
        super().__init__(name="core-io", daemon=True)
        self.inbox: SimpleQueue[InboxItem] = SimpleQueue()
        self.aborts: deque[tuple[str, Abort]] = deque()
        self._ready = ready
        self._pong = pong
        self._silence_seconds = silence_seconds
        self._far_silence_seconds = far_silence_seconds
        self._outbox: deque[tuple[str, CoreMessage]] = deque()
        self._clients: dict[str, _Client] = {}
        self._pidfd_to_client_id: dict[int, str] = {}
        self._last_words: str | None = None
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = zmq.Context()
        self._doors = [open_local(self._context, address)]
        self._path = Path(address.removeprefix("ipc://"))
        self._gatekeeper: Gatekeeper | None = None
        if far is not None:
            self._open_to_others(far)
        self._poller = zmq.Poller()
        for door in self._doors:
            self._poller.register(door.socket, zmq.POLLIN)
            if door.callers is not None:
                self._poller.register(door.callers.events, zmq.POLLIN)
        if self._gatekeeper is not None:
            self._poller.register(self._gatekeeper.socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)

    def _open_to_others(self, far: FarDoor) -> None:
        self._gatekeeper = Gatekeeper(self._context, Path(far.keys))
        try:
            self._doors.append(open_far(self._context, far))
        except ValueError:
            self._gatekeeper.close()
            self._doors[0].socket.close(linger=0)
            self._context.term()
            self._path.unlink(missing_ok=True)
            raise

    # ---- called by the step loop ----------------------------------------------------------------

    def send(self, client_id: str, message: CoreMessage) -> None:
        """Leave a message for a client. Never waits; one for a client that is gone is dropped."""
        self._outbox.append((client_id, message))
        os.eventfd_write(self._wake_fd, 1)

    def close(self, reason: str) -> None:
        """Tell every client that the core is about to exit, and end the thread."""
        self._last_words = reason
        os.eventfd_write(self._wake_fd, 1)
        self.join()
        self._context.term()
        self._path.unlink(missing_ok=True)

    # ---- the thread -----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._serve()
        except BaseException:  # a core that hears nobody must not live on
            logger.exception("the IO thread failed")
            os._exit(1)

    def _serve(self) -> None:
        while self._last_words is None:
            is_congested = any(client.backlog for client in self._clients.values())
            events = dict(self._poller.poll(self._poll_ms(is_congested)))
            if self._wake_fd in events:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
            self._send_outbox()
            if is_congested:
                self._retry_backlogs()
            if self._gatekeeper is not None and self._gatekeeper.socket in events:
                self._gatekeeper.answer()
            for door in self._doors:
                if door.callers is not None and door.callers.events in events:
                    door.callers.take_events()
                if door.socket in events:
                    self._receive(door)
                if door.callers is not None and self._gatekeeper is not None:
                    for client_id, problem in door.callers.look(self._gatekeeper.read_trusted):
                        self._lose(client_id, problem)
            for pidfd in self._pidfd_to_client_id.keys() & events.keys():
                self._lose(self._pidfd_to_client_id[pidfd], "its process ended")
            self._notice_silence()
        self._send_outbox()
        for client_id in list(self._clients):
            self._deliver(client_id, encode(Dead(self._last_words)))
        for door in self._doors:
            if door.callers is not None:
                door.callers.close()
            door.socket.close()
        if self._gatekeeper is not None:
            self._gatekeeper.close()

    def _poll_ms(self, is_congested: bool) -> int | None:
        if is_congested:
            return RETRY_MS
        if any(door.callers for door in self._doors):  # who may have no client yet
            return int(LOOK_SECONDS * 1000)
        if not self._clients:
            return None
        has_far = any(client.door.is_far for client in self._clients.values())
        limits = (self._silence_seconds, self._far_silence_seconds if has_far else math.inf)
        return int(min(limits) * 250)

    def _send_outbox(self) -> None:
        while self._outbox:
            client_id, message = self._outbox.popleft()
            for payload in _payloads(message):
                self._deliver(client_id, payload)

    def _receive(self, door: Door) -> None:
        """One turn. What is left has the next one, at once."""
        num_bytes = 0
        with contextlib.suppress(zmq.Again):
            for _ in range(TURN_MESSAGES):
                if (mail := door.receive()) is not None:
                    self._take(door, mail)
                    num_bytes += len(mail.payload or b"")
                if num_bytes > TURN_BYTES:
                    return

    def _take(self, door: Door, mail: Mail) -> None:
        client_id = door.client_id(mail.identity)
        if client := self._clients.get(client_id):
            client.last_heard = time.monotonic()
            client.is_silent = False
        try:
            if mail.payload is None:
                raise ValueError("it has several parts")
            if door.is_far:
                check_size(mail.payload)
            message: ClientMessage = decode_client_message(mail.payload)
        except Exception as error:  # whatever garbage can do to a decoder, such as recursion
            self._dismiss(client_id, f"unreadable message: {error}")
            return
        if isinstance(message, Hello) and message.replaces:
            self._replace(door.prefix + message.replaces, mail.key)
        self._dispatch(door, client_id, mail.identity, message)
        if isinstance(message, Hello) and (client := self._clients.get(client_id)):
            client.key = mail.key

    def _dispatch(
        self, door: Door, client_id: str, identity: bytes, message: ClientMessage
    ) -> None:
        if isinstance(message, Hello) and message.protocol != PROTOCOL_VERSION:
            logger.warning("client %s speaks protocol %d, refused", client_id, message.protocol)
            self._tell(door, identity, Dead(f"the engine core speaks protocol {PROTOCOL_VERSION}"))
        elif isinstance(message, Hello):
            self._greet(door, client_id, identity, message)
        elif client_id not in self._clients:  # of an earlier core, or one that was given up
            self._tell(door, identity, Dead("the engine core does not know this client"))
        elif isinstance(message, Ping):
            self._deliver(client_id, encode(self._pong(message)))
        elif (problem := door.refusal(message)) is not None:
            self._refuse(client_id, message, problem)
        else:
            if isinstance(message, Abort):
                self.aborts.append((client_id, message))
            self.inbox.put((client_id, message))

    def _refuse(self, client_id: str, message: ClientMessage, problem: str) -> None:
        logger.warning("client %s: %s", client_id, problem)
        if isinstance(message, Utility):
            self._deliver(client_id, encode(UtilityReply(message.call_id, error=problem)))
        elif isinstance(message, AddRequest):
            end = SequenceOutput(
                message.request_id, finish_reason="error", error=(REFUSED, problem)
            )
            stats = self._pong(Ping(0)).stats
            assert stats is not None  # ours says it always
            self._deliver(client_id, encode(StepOutputs(self._ready.epoch, 0, [end], stats)))

    def _greet(self, door: Door, client_id: str, identity: bytes, hello: Hello) -> None:
        if client_id not in self._clients:
            client = self._clients[client_id] = _Client(door, identity, time.monotonic())
            if not door.is_far:
                self._watch_process(client_id, client, hello.pid)
            logger.info("client %s joined, process %d", client_id, hello.pid)
        self._deliver(client_id, encode(self._ready if not door.is_far else self._far_ready(door)))

    def _replace(self, client_id: str, key: str) -> None:
        """At once: the end of its connection shows here only when something is sent to it.

        Nobody replaces the client of another key, nor one of this machine.
        """
        client = self._clients.get(client_id)
        if client is not None and client.door.is_far and client.key == key:
            self._lose(client_id, "it has connected anew")

    def _watch_process(self, client_id: str, client: _Client, pid: int) -> None:
        try:
            client.pidfd = pidfd = os.pidfd_open(pid)
            self._pidfd_to_client_id[pidfd] = client_id
            self._poller.register(pidfd, zmq.POLLIN)
        except (OSError, OverflowError):  # ended already, or in another container, or nonsense
            logger.warning("client %s: process %d cannot be watched", client_id, pid)

    def _far_ready(self, door: Door) -> Ready:
        """What other machines may know: no paths of this one, and what is refused is not there."""
        config = self._ready.config
        enable_lora = config.enable_lora and LORA in door.permits
        config = msgspec.structs.replace(
            config, model="", tokenizer="", address="", far=None, enable_lora=enable_lora
        )
        return msgspec.structs.replace(self._ready, pid=0, config=config)

    def _deliver(self, client_id: str, payload: bytes) -> None:
        client = self._clients.get(client_id)
        if client is None:
            return
        if not client.backlog:
            try:
                if _send(client.door, client.identity, payload):
                    return
            except zmq.ZMQError as error:
                self._lose(client_id, str(error))
                return
        client.backlog.append(payload)
        client.num_backlog_bytes += len(payload)
        if client.num_backlog_bytes > MAX_BACKLOG_BYTES:
            self._dismiss(client_id, "it does not read")

    def _tell(self, door: Door, identity: bytes, message: CoreMessage) -> None:
        """Send without certainty, to one who may not be there."""
        with contextlib.suppress(zmq.ZMQError):
            _send(door, identity, encode(message))

    def _retry_backlogs(self) -> None:
        for client_id, client in list(self._clients.items()):
            try:
                while client.backlog and _send(client.door, client.identity, client.backlog[0]):
                    client.num_backlog_bytes -= len(client.backlog.popleft())
            except zmq.ZMQError as error:
                self._lose(client_id, str(error))

    def _notice_silence(self) -> None:
        """The process of a client may live and yet never read again: say so once.

        One on another machine has no process that we could watch: it is forgotten.
        """
        now = time.monotonic()
        limit, far_limit = now - self._silence_seconds, now - self._far_silence_seconds
        for client_id, client in list(self._clients.items()):
            if client.door.is_far:
                if client.last_heard < far_limit:
                    self._dismiss(client_id, f"silent for {self._far_silence_seconds:g} s")
            elif client.last_heard < limit and not client.is_silent:
                client.is_silent = True
                logger.warning("client %s: silent for %g s", client_id, self._silence_seconds)
                self.inbox.put(ClientSilent(client_id))

    def _dismiss(self, client_id: str, reason: str) -> None:
        """Forget a client that may live, and say so to it: its requests will not be answered."""
        client = self._clients.get(client_id)
        if client is not None:
            self._tell(client.door, client.identity, Dead(reason))
            self._lose(client_id, reason)

    def _lose(self, client_id: str, reason: str) -> None:
        """Forget a client; the step loop ends its requests."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        logger.info("client %s is gone: %s", client_id, reason)
        if client.pidfd is not None:
            del self._pidfd_to_client_id[client.pidfd]
            self._poller.unregister(client.pidfd)
            os.close(client.pidfd)
        self.inbox.put(ClientGone(client_id))


def _send(door: Door, identity: bytes, payload: bytes) -> bool:
    """False if the pipe is full. Raises ZMQError if there is no such client any more."""
    try:
        door.socket.send_multipart([identity, payload], zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def _payloads(message: CoreMessage) -> Iterator[bytes]:
    """A message as bytes: the outputs of one step as several messages if they are very long."""
    payload = encode(message)
    if len(payload) <= SPLIT_BYTES or not isinstance(message, StepOutputs):
        yield payload
        return
    half = len(message.outputs) // 2
    if half == 0:
        yield payload
        return
    for outputs in (message.outputs[:half], message.outputs[half:]):
        yield from _payloads(msgspec.structs.replace(message, outputs=outputs))
