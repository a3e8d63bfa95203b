"""`CoreProbe`: whether a core's step loop comes round, asked by a process without an event loop.

A supervisor knows from its child's exit that a core has died. A core that hangs, in a kernel or
because it was stopped, only shows in questions that are not answered.
"""

import os
import time
import uuid
from collections.abc import Callable

import msgspec
import zmq

from engine.ipc import (
    MAX_MESSAGE_BYTES,
    Hello,
    Ready,
    Utility,
    UtilityReply,
    decode_core_message,
    encode,
)

MAX_LOOK_SECONDS = 2.0  # between two looks; longer ones mean that it was us who stood still


class CoreProbe:
    """Asks a core that is ready, from inside its step loop. `now` is a monotonic clock."""

    def __init__(self, address: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._client_id = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._silence = 0.0
        self._num_calls = 0
        self._has_joined = self._is_asking = False
        self._last_look = now()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, self._client_id.encode())
        self._socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(address)

    def look(self) -> float:
        """For how many seconds the core has owed an answer, as far as we looked; never waits."""
        now = self._now()
        seconds = min(now - self._last_look, MAX_LOOK_SECONDS)
        self._last_look = now
        if self._receive():
            self._silence = 0.0
            self._is_asking = False
        elif self._is_asking:
            self._silence += seconds
        if not self._is_asking:
            self._ask()
        return self._silence

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _ask(self) -> None:
        if self._has_joined:
            self._num_calls += 1
            question: Hello | Utility = Utility(self._num_calls, "num_unfinished")
        else:
            question = Hello(self._client_id, os.getpid())
        self._socket.send(encode(question))
        self._is_asking = True

    def _receive(self) -> bool:
        """Whether the answer has come."""
        has_answer = False
        while self._socket.poll(0):
            try:
                message = decode_core_message(self._socket.recv())
            except msgspec.DecodeError:
                continue  # no answer to anything
            if isinstance(message, Ready):
                self._has_joined = has_answer = True
            elif isinstance(message, UtilityReply):
                has_answer |= message.call_id == self._num_calls
        return has_answer
