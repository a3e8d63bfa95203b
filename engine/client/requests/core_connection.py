"""`CoreConnection`: the client's end of the socket between the two halves.

One core at a time: the connection says hello until one answers, pings it, and notices when it
stalls, when it dies (its pidfd becomes readable, so a `kill -9` shows at once) and when another one
takes its place on the same address (a new epoch).
"""

import asyncio
import os
import select
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from engine.client.requests.core_link import CoreListener, CoreState, Exactness
from engine.client.requests.outgoing import MAX_ABORTED_IDS, check_readable, pack
from engine.errors import EngineDeadError, EngineGenerateError, EngineStartError
from engine.ipc import (
    Abort,
    ClientMessage,
    CoreMessage,
    Dead,
    Hello,
    Ping,
    Pong,
    Ready,
    SchedulerStats,
    StepOutputs,
    Utility,
    UtilityReply,
    decode_core_message,
)
from engine.sampling_params import SamplingParams

HELLO_SECONDS = 0.05  # between two Hellos
RECONNECT_MS = 50  # between two tries to reach a core that is not there
TICK_SECONDS = 1.0  # between two Pings
STALL_SECONDS = 5.0  # without a round of the step loop: the core is stalled
MAX_MESSAGES_PER_TURN = 64  # received before the event loop gets a turn
MAX_TURN_SECONDS = 0.02  # likewise: a message may be long
CLOSE_LINGER_MS = 200  # for the last aborts to leave


class CoreConnection:
    """One client's end of the socket. It notices when a core comes, stalls, dies and is replaced.

    It works by callbacks on the event loop that `attach` was last called from, owns no task, and
    knows its listener only weakly: an engine that nobody holds any more can be collected.
    """

    exactness = Exactness.EXACT

    def __init__(
        self,
        address: str,
        *,
        reconnect: bool,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.client_id = new_client_id()
        self.state = CoreState.CONNECTING
        self.ready: Ready | None = None  # of the core we are joined to
        self.stats: SchedulerStats | None = None
        self.last_beat = 0.0  # time.monotonic() of the step loop's last known round
        self.heard_at: float | None = None  # time.monotonic() of the core's last pong
        self._listener: weakref.ref[CoreListener] | None = None
        self._reconnect = reconnect
        self._stall_seconds = stall_seconds
        self._tick_seconds = min(TICK_SECONDS, stall_seconds / 5)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_tick = 0.0
        self._core_pidfd: int | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = self._num_pings = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._context = zmq.Context()
        self._socket = self._open_socket(address)

    def listen(self, listener: CoreListener) -> None:
        self._listener = weakref.ref(listener)

    def handshake(self, timeout: float) -> Ready:
        """Join the core, blocking, before there is an event loop. Raises `EngineStartError`."""
        deadline = time.monotonic() + timeout
        while self.ready is None:
            if time.monotonic() > deadline:
                raise EngineStartError(f"the engine core did not answer within {timeout:g} s")
            self._seek()
            while self.ready is None and self._socket.poll(int(HELLO_SECONDS * 1000)):
                self._dispatch(self._socket.recv())
        return self.ready

    def attach(self) -> None:
        """Work on the running event loop from now on. Does nothing if it does so already."""
        loop = asyncio.get_running_loop()
        if loop is self._loop or self._socket.closed:
            return
        self._detach()
        self._loop = loop
        self._listen_to_socket(loop)
        if self._core_pidfd is not None:
            loop.add_reader(self._core_pidfd, self._on_core_exit)
        self._tick()

    def send(self, message: ClientMessage) -> bool:
        """Put a message on its way without waiting; False when no core is connected.

        `ValidationError` for one that is too long, or that cannot be encoded.
        """
        payload = self._pack(message)
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.ZMQError:  # EAGAIN: no connection; ENOTSOCK: closed
            return False
        self._receive_soon()
        return True

    def _pack(self, message: ClientMessage) -> bytes:
        return pack(message)

    def check(self, params: SamplingParams) -> None:
        """Our own does all that there is."""

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> None:
        """Have the core end requests, by internal id; without a core there is nothing to end."""
        for start in range(0, len(request_ids), MAX_ABORTED_IDS):
            self.send(Abort(list(request_ids[start : start + MAX_ABORTED_IDS]), reason))

    def call(self, name: str, *args: Any) -> asyncio.Future[Any]:
        """Call a utility of the core by name. Fails with `EngineDeadError` if the core dies.

        Raises `ValidationError` for arguments that the core could not read.
        """
        self.attach()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._num_calls += 1
        call_id = self._num_calls
        utility = Utility(call_id, name, list(args))
        check_readable(utility)
        if self.ready is None or not self.send(utility):
            future.set_exception(EngineDeadError("no engine core is connected"))
            return future
        self._calls[call_id] = future
        future.add_done_callback(lambda _: self._calls.pop(call_id, None))
        return future

    async def wait_ready(self) -> None:
        """Return when a core is joined and its step loop comes round. May be cancelled freely.

        Raises `EngineDeadError` when the connection is closed, or the only core dies, meanwhile.
        """
        self.attach()
        while self.state is not CoreState.READY:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def core_has_exited(self) -> bool:
        """Ask the kernel, not the event loop, whether the joined core is gone."""
        if self._core_pidfd is None:
            return self.state is CoreState.DEAD
        return bool(select.select([self._core_pidfd], [], [], 0)[0])

    def close(self) -> None:
        """Close the socket. Idempotent; what was sent before still leaves."""
        if self._socket.closed:
            return
        self._detach()
        self._forget_core(EngineDeadError("the engine was shut down"))
        self.state = CoreState.DEAD
        self._give_up_waiting("the engine was shut down")
        self._close_socket(CLOSE_LINGER_MS)
        self._context.term()

    def _open_socket(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.IDENTITY, self.client_id.encode())
        socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a core that is not there
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)  # constant: the other end is a local file
        socket.connect(address)
        return socket

    def _close_socket(self, linger_ms: int) -> None:
        self._socket.close(linger=linger_ms)

    def _listen_to_socket(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._socket.fileno(), self._receive)
        loop.call_soon(self._receive)  # what has come before is not announced again

    def _leave_socket(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._socket.fileno())

    def _seek(self) -> None:
        """Ask for a core; called every `HELLO_SECONDS` until one answers."""
        self.send(Hello(self.client_id, os.getpid()))

    def _detach(self) -> None:
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and not loop.is_closed():
            self._leave_socket(loop)
            if self._core_pidfd is not None:
                loop.remove_reader(self._core_pidfd)

    def _receive_soon(self) -> None:
        """The socket's descriptor is edge-triggered: sending may use up the announcement."""
        if self._loop is not None and int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        until = time.monotonic() + MAX_TURN_SECONDS
        for _ in range(MAX_MESSAGES_PER_TURN):
            if self._socket.closed:
                return
            if time.monotonic() > until:
                break
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._dispatch(payload)
        if self._loop is not None:
            self._loop.call_soon(self._receive)

    def _dispatch(self, payload: bytes) -> None:
        try:
            message: CoreMessage = decode_core_message(payload)
        except msgspec.DecodeError as error:  # also what ValidationError derives from
            self._lose(f"the engine core sent something unreadable: {error}")
            return
        match message:
            case Ready():
                self._on_ready(message)
            case StepOutputs():
                self._on_step(message)
            case Pong():
                self._on_pong(message)
            case UtilityReply():
                self._on_reply(message)
            case Dead():
                self._on_dead(message.reason)

    def _on_ready(self, ready: Ready) -> None:
        if self.ready is not None:
            if self.ready.epoch == ready.epoch:
                return
            self._lose("the engine core was restarted")
        elif self.state is CoreState.DEAD and not self._reconnect:
            return
        self.ready = ready
        self.last_beat = self.heard_at = time.monotonic()
        if self._watch(ready):
            self._set_state(CoreState.READY, "")
        else:  # it was an old answer
            self._lose("the engine core exited")

    def _watch(self, ready: Ready) -> bool:
        """Notice the end of the core's process from now on; False if it has ended."""
        try:
            self._core_pidfd = os.pidfd_open(ready.pid)
        except ProcessLookupError:
            return False
        except OSError:  # out of descriptors: only its silence will show its death
            return True
        if self.core_has_exited():
            return False
        if self._loop is not None:
            self._loop.add_reader(self._core_pidfd, self._on_core_exit)
        return True

    def _on_dead(self, reason: str) -> None:
        if self.ready is not None:
            self._lose(reason)

    def _on_step(self, step: StepOutputs) -> None:
        if self.ready is None or step.epoch != self.ready.epoch:
            return
        self.stats = step.stats
        self._on_beat(0.0)
        listener = None if self._listener is None else self._listener()
        if listener is not None:
            listener.on_core_outputs(step.outputs)

    def _on_pong(self, pong: Pong) -> None:
        if self.ready is None:
            return
        if pong.epoch != self.ready.epoch:
            self._lose("the engine core was restarted")
            return
        self.stats = pong.stats or self.stats
        self.heard_at = time.monotonic()
        self._on_beat(pong.loop_age_seconds)

    def _on_beat(self, age_seconds: float) -> None:
        self.last_beat = max(self.last_beat, time.monotonic() - age_seconds)
        if self.state is CoreState.STALLED and age_seconds < self._stall_seconds:
            self._set_state(CoreState.READY, "")

    def _on_reply(self, reply: UtilityReply) -> None:
        future = self._calls.get(reply.call_id)
        if future is None or future.done() or future.get_loop().is_closed():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(EngineGenerateError(reply.error))

    def _on_core_exit(self) -> None:
        self._receive()  # its last words
        if self.core_has_exited():
            self._lose("the engine core exited")

    def _lose(self, reason: str) -> None:
        self._forget_core(EngineDeadError(reason))
        self._set_state(CoreState.DEAD, reason)
        self._tick_soon()

    def _tick_soon(self) -> None:
        """Say hello to the next core as soon as it may be there, not when a ping would be due."""
        if self._loop is not None and self._timer is not None:
            self._timer.cancel()
            self._next_tick = self._loop.time() + HELLO_SECONDS
            self._timer = self._loop.call_later(HELLO_SECONDS, self._tick)

    def _forget_core(self, error: EngineDeadError) -> None:
        self.ready = None
        self.stats = None
        pidfd, self._core_pidfd = self._core_pidfd, None
        if pidfd is not None:
            if self._loop is not None:
                self._loop.remove_reader(pidfd)
            os.close(pidfd)
        for future in list(self._calls.values()):
            if not future.done() and not future.get_loop().is_closed():
                future.set_exception(error)
        self._calls.clear()

    def _set_state(self, state: CoreState, reason: str) -> None:
        self.state = state
        if state is CoreState.READY:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
        elif state is CoreState.DEAD and not self._reconnect:
            self._give_up_waiting(reason)
        listener = None if self._listener is None else self._listener()
        if listener is not None:
            listener.on_core_state(state, reason)

    def _give_up_waiting(self, reason: str) -> None:
        for waiter in self._waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_exception(EngineDeadError(reason))

    def _tick(self) -> None:
        loop = self._loop
        if loop is None or (self.state is CoreState.DEAD and not self._reconnect):
            return
        late_by = loop.time() - self._next_tick
        delay = self._tick_seconds
        if self.ready is None:
            self._seek()
            delay = min(delay, HELLO_SECONDS)
        else:
            self._num_pings += 1
            self.send(Ping(self._num_pings))
            if late_by < delay:  # else it was our own loop that stood still
                self._judge()
        self._next_tick = loop.time() + delay
        self._timer = loop.call_later(delay, self._tick)

    def _judge(self) -> None:
        age = time.monotonic() - self.last_beat
        if self.state is CoreState.READY and age > self._stall_seconds:
            self._set_state(CoreState.STALLED, f"no step for {age:.0f} s")


def new_client_id() -> str:
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
