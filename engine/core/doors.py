"""`Door`: one way into the core; and `Gatekeeper`, who lets nobody else in by the one from afar.

The local door is a unix socket, in a directory that is its owner's alone. The far one is a TCP
socket with CURVE. Who comes there must have a key that is trusted, or libzmq closes the connection
before a message of it is read here.
"""

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import zmq

from engine.config import FarDoor
from engine.core.callers import Callers
from engine.far import calls
from engine.far.keys import TRUSTED, KeysError, read_keys, read_trusted, stamp_of_trusted
from engine.far.sockets import set_server
from engine.ipc import MAX_MESSAGE_BYTES, AddRequest, ClientMessage, Utility

logger = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks, by its name
ZAP_FRAMES = 7  # version, request id, domain, address, identity, mechanism, key
LOG_SECONDS = 1.0  # between two lines on clients that are refused
LINGER_MS = 1000  # for the last words of a core that exits
MAX_QUESTIONS = 64  # that are answered in one turn


class Mail(NamedTuple):
    """One message, by the identity of its sender."""

    identity: bytes
    payload: bytes | None  # None: it has more than the one part that a message has
    key: str = ""  # of the sender, which no client of this machine has


@dataclass(slots=True)
class Door:
    """`socket` is a ROUTER; client ids begin with `prefix`, so that doors share none."""

    socket: "zmq.Socket[bytes]"
    prefix: str = ""
    permits: Collection[str] = ()
    callers: Callers | None = None  # of the far one
    _has_rest: bool = False  # parts of a message that nobody wants are still to be read

    @property
    def is_far(self) -> bool:
        return self.callers is not None

    def client_id(self, identity: bytes) -> str:
        return self.prefix + identity.decode("latin-1")  # any bytes are an id, and each its own

    def receive(self) -> Mail | None:
        """The next message; None: one more part of the last one. Raises `zmq.Again`.

        A message may have a million parts: they are not read all at once.
        """
        if self._has_rest:
            self._has_rest = self.socket.recv(zmq.NOBLOCK, copy=False).more
            return None
        identity = self.socket.recv(zmq.NOBLOCK)
        part = self.socket.recv(zmq.NOBLOCK, copy=False)
        self._has_rest = part.more
        payload = None if part.more else part.bytes
        if self.callers is None:
            return Mail(identity, payload)
        key = str(part.get("User-Id"))
        self.callers.note(int(part.get("__fd")), self.client_id(identity), key)
        return Mail(identity, payload, key)

    def refusal(self, message: ClientMessage) -> str | None:
        """Why nothing is done for this message of a client that has come in; None: it is."""
        if not self.is_far:
            return None
        if isinstance(message, Utility):
            return calls.refusal(message.name, self.permits)
        if isinstance(message, AddRequest) and message.lora is not None:
            return calls.lora_refusal(self.permits)
        return None


def open_local(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> Door:
    """The door for clients of this machine."""
    router = _router(context)
    router.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    router.bind(address)
    return Door(router)


def open_far(context: "zmq.Context[zmq.Socket[bytes]]", far: FarDoor) -> Door:
    """The door for those of others. A `Gatekeeper` must be there. Raises ValueError in one line."""
    keys = read_keys(Path(far.keys))
    router = _router(context)
    set_server(router, keys, far.address)
    callers = Callers(router)
    try:
        router.bind(far.address)
    except zmq.ZMQError as error:
        callers.close()
        router.close(linger=0)
        raise ValueError(f"cannot listen at {far.address}: {error.strerror}") from None
    logger.info("listening at %s, with the public key %s", far.address, keys.public.hex())
    if not keys.trusted:
        logger.warning("nobody can come yet: %s is empty", Path(far.keys, TRUSTED))
    return Door(router, prefix="far-", permits=tuple(far.permits), callers=callers)


class Gatekeeper:
    """Answers libzmq's question whether a key may come in (ZeroMQ's RFC 27).

    Files that come, go or change in the folder count at once. One per context.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", folder: Path) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ZAP_ADDRESS)
        self._folder = folder
        self._trusted: Mapping[str, str] = {}  # names, by key
        self._problem = ""  # why nobody is let in
        self._stamp: tuple[int, ...] = ()
        self._num_untold = 0
        self._told_at = 0.0

    def answer(self) -> None:
        """Answer questions that have come. Never raises for what a stranger sends."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MAX_QUESTIONS):
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
                key = self._key_of(frames)
                status, text = (b"200", b"") if key else (b"400", b"this key is not trusted")
                version, request_id, *_ = [*frames, b"", b""]
                self.socket.send_multipart([version, request_id, status, text, key, b""])

    def read_trusted(self) -> Collection[str] | None:
        """The keys that may come, in hex; None if they cannot be read now."""
        try:
            stamp = stamp_of_trusted(self._folder)
            if stamp != self._stamp:
                self._trusted = {
                    key.hex(): name for key, name in read_trusted(self._folder).items()
                }
                self._stamp = stamp
        except (OSError, KeysError) as error:
            self._tell_problem(str(error))
            return None
        self._problem = ""
        return self._trusted.keys()

    def close(self) -> None:
        self.socket.close(linger=0)

    def _key_of(self, frames: list[bytes]) -> bytes:
        """Of who may come in; empty: nobody may."""
        if len(frames) != ZAP_FRAMES or frames[5] != b"CURVE":
            return b""
        address, key = frames[3].decode("latin-1"), frames[6].hex()
        trusted = self.read_trusted()
        if trusted is None:
            return b""
        if key not in trusted:
            self._tell(address, key)
            return b""
        logger.info("%s comes in from %s", self._trusted[key], address)
        return key.encode()

    def _tell_problem(self, problem: str) -> None:
        """Once, however often somebody asks."""
        if problem != self._problem:
            self._problem = problem
            logger.error("nobody is let in: %s", problem)

    def _tell(self, address: str, key: str) -> None:
        """Strangers may knock often."""
        self._num_untold += 1
        now = time.monotonic()
        if now - self._told_at >= LOG_SECONDS:
            num, self._num_untold, self._told_at = self._num_untold, 0, now
            logger.warning("refused %d times: the last at %s, with the key %s", num, address, key)


def _router(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    router = context.socket(zmq.ROUTER)
    router.set(zmq.ROUTER_MANDATORY, 1)  # else what cannot be delivered vanishes
    router.set(zmq.LINGER, LINGER_MS)
    return router
