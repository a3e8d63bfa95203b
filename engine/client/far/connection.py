"""`FarCoreConnection`: the link to a core of ours on another machine, by TCP with CURVE.

What is on its way when a connection breaks is lost, tokens among it. So a broken connection is a
dead core for whoever has requests there: they go on from their last token, by a new connection,
under new ids, as in the next core. A socket here connects once; the next one is another client to
the core, and names the one that it replaces, so that nothing is computed for that any more.

A broken connection shows at once, as an event of libzmq's, and a net that swallows everything by
silence: the core answers a ping a second, also in the middle of a step.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.client.requests.core_connection import (
    HELLO_SECONDS,
    STALL_SECONDS,
    CoreConnection,
    new_client_id,
)
from engine.client.requests.core_link import CoreState
from engine.errors import EngineStartError, ValidationError
from engine.far.keys import KeysError, read_keys
from engine.far.sizes import check_size
from engine.far.sockets import set_client
from engine.grammar.params import as_sent
from engine.ipc import AddRequest, ClientMessage, Hello, Ready
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

SILENT_SECONDS = 10.0  # without a word of the core: it is taken for dead
CONNECT_SECONDS = 5.0  # that a connection and the first answer may take
RETRY_SECONDS = 0.25  # from one connection to the next
REFUSED_RETRY_SECONDS = 2.0  # where the last one was refused
MIN_STRANGE = 3

EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

# Why a core that has answered is none of ours; None: it is.
Check = Callable[[Ready], str | None]


class CoreRefusal(EngineStartError):
    """The core is there and is not to be used, or does not want us: somebody must change that."""


class FarCoreConnection(CoreConnection):
    """As `CoreConnection`, to `tcp://HOST:PORT`, with the keys in a folder, read for each try.

    `check` sees what each core says of itself, and may refuse it. `problem` is why there is no
    core, as far as that is known.
    """

    def __init__(
        self,
        address: str,
        keys: Path,
        *,
        check: Check = lambda ready: None,
        stall_seconds: float = STALL_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.problem: str | None = None
        self.is_refused = False  # the problem is more than that nobody is there
        self._address = address
        self._keys = keys
        self._check = check
        self._silent_seconds = silent_seconds
        self._connect_seconds = connect_seconds
        self._monitor: zmq.Socket[bytes] | None = None
        self._opened_at = self._heard_at = time.monotonic()
        self._is_broken = False  # the connection of this socket, or its making
        self._num_strange = 0  # tries in a row that met somebody else
        self._replaced_id = ""  # the client that we were in the last core that we had joined
        super().__init__(address, reconnect=True, stall_seconds=stall_seconds)

    def handshake(self, timeout: float) -> Ready:
        """As `CoreConnection.handshake`; raises `CoreRefusal` where waiting would not help."""
        deadline = time.monotonic() + timeout
        while self.ready is None:
            if self.is_refused:
                raise CoreRefusal(self.problem or "refused")
            if time.monotonic() > deadline:
                raise EngineStartError(self.problem or f"{self._address} does not answer")
            self._read_events()
            self._seek()
            while self.ready is None and self._socket.poll(int(HELLO_SECONDS * 1000)):
                self._dispatch(self._socket.recv())
        return self.ready

    def check(self, params: SamplingParams) -> None:
        """What would be too large to say."""
        form = params.structured_outputs
        if form is not None:
            params = msgspec.structs.replace(params, structured_outputs=as_sent(form))
        self._pack(AddRequest("", [], params, 0.0))

    def _pack(self, message: ClientMessage) -> bytes:
        """What is too large would end the connection, and with it all that others have asked."""
        payload = super()._pack(message)
        try:
            check_size(payload)
        except ValueError as problem:
            raise ValidationError(str(problem), "request") from None
        return payload

    # ---- the socket, which connects once --------------------------------------------------------

    def _open_socket(self, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.IDENTITY, self.client_id.encode())
        socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a core that is not there
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, 0)
        self._opened_at = time.monotonic()
        self._is_broken = False
        self._monitor = socket.get_monitor_socket(EVENTS)
        try:
            set_client(socket, read_keys(self._keys), address)
            socket.connect(address)
        except (KeysError, zmq.ZMQError) as error:
            self._break(str(error), is_refused=isinstance(error, KeysError))
        return socket

    def _close_socket(self, linger_ms: int) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            self._socket.disable_monitor()
            monitor.close(linger=0)
        super()._close_socket(linger_ms)

    def _listen_to_socket(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._listen_to_socket(loop)
        if self._monitor is not None:
            loop.add_reader(self._monitor.fileno(), self._read_events)
            loop.call_soon(self._read_events)

    def _leave_socket(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._leave_socket(loop)
        if self._monitor is not None:
            loop.remove_reader(self._monitor.fileno())

    def _replace_socket(self) -> None:
        loop = self._loop
        if loop is not None:
            self._leave_socket(loop)
        self._close_socket(0)
        self.client_id = new_client_id()
        self._socket = self._open_socket(self._address)
        if loop is not None:
            self._listen_to_socket(loop)

    def _read_events(self) -> None:
        """libzmq's word on the connection; there is only one in the life of a socket."""
        while self._monitor is not None and self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            match event:
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._break(f"{self._address} does not trust our key", is_refused=True)
                case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._on_stranger()
                case zmq.EVENT_CLOSED if self.ready is None:
                    self._num_strange = 0
                    self._break(f"nobody listens at {self._address}")
                case _:
                    self._on_end()

    def _on_stranger(self) -> None:
        """It may also be a core that has just died: so once is not enough to say so."""
        self._num_strange += 1
        who = f"what answers at {self._address}"
        self._break(
            f"{who} is no core, or not the one whose key is trusted",
            is_refused=self._num_strange >= MIN_STRANGE,
        )

    def _on_end(self) -> None:
        """Of the connection; its last messages may still be here."""
        if self.ready is not None:
            self._receive()
        self._break("the connection to the engine core broke")

    def _break(self, problem: str, *, is_refused: bool = False) -> None:
        """This socket is of no more use; the next one comes with `_seek`."""
        if not self._is_broken:  # what comes first says most
            self._is_broken = True
            self._note(problem, is_refused=is_refused)
        if self.ready is not None:
            self._lose(problem)

    def _note(self, problem: str, *, is_refused: bool) -> None:
        if is_refused and problem != self.problem:
            logger.warning("%s", problem)  # the log has it once, however often we try
        self.problem, self.is_refused = problem, is_refused

    # ---- the core -------------------------------------------------------------------------------

    def _seek(self) -> None:
        now = time.monotonic()
        age = now - self._opened_at
        if self._is_broken:
            is_due = age > (REFUSED_RETRY_SECONDS if self.is_refused else RETRY_SECONDS)
        else:
            is_due = age > self._connect_seconds
            if is_due:
                host = urlsplit(self._address).netloc
                self._note(f"{host} has not answered for {age:.0f} s", is_refused=False)
        if is_due:
            self._replace_socket()
        if not self._is_broken:
            self.send(Hello(self.client_id, os.getpid(), replaces=self._replaced_id))

    def _dispatch(self, payload: bytes) -> None:
        self._heard_at = time.monotonic()
        super()._dispatch(payload)

    def _on_ready(self, ready: Ready) -> None:
        if self.ready is None and (problem := self._check(ready)) is not None:
            self._break(f"the engine core at {self._address}: {problem}", is_refused=True)
            if self.state is CoreState.CONNECTING:
                self._set_state(CoreState.DEAD, problem)
            return
        super()._on_ready(ready)

    def _on_dead(self, reason: str) -> None:
        self._break(reason, is_refused=self.ready is None)

    def _watch(self, ready: Ready) -> bool:
        """Its process is not of this machine: the connection and its words are all that we see."""
        self.problem, self.is_refused, self._num_strange = None, False, 0
        self._replaced_id = self.client_id
        return True

    def _lose(self, reason: str) -> None:
        self._is_broken = True  # what it still says is not about the requests that are sent next
        super()._lose(reason)

    def _judge(self) -> None:
        silent = time.monotonic() - self._heard_at
        if silent > self._silent_seconds:
            self._break(f"no word of the engine core for {silent:.0f} s")
        else:
            super()._judge()
