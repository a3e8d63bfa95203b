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

import zmq

from engine.config import FarDoor
from engine.far import calls
from engine.far.keys import TRUSTED, KeysError, read_keys, read_trusted, stamp_of_trusted
from engine.far.sockets import set_server
from engine.ipc import MAX_MESSAGE_BYTES, AddRequest, ClientMessage, Utility

logger = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks, by its name
ZAP_FRAMES = 7  # version, request id, domain, address, identity, mechanism, key
LOG_SECONDS = 1.0  # between two lines on clients that are refused
LINGER_MS = 1000  # for the last words of a core that exits


@dataclass(frozen=True, slots=True)
class Door:
    """`socket` is a ROUTER; client ids begin with `prefix`, so that doors share none."""

    socket: "zmq.Socket[bytes]"
    prefix: str = ""
    is_far: bool = False
    permits: Collection[str] = ()

    def client_id(self, identity: bytes) -> str:
        return self.prefix + identity.decode("latin-1")  # any bytes are an id, and each its own

    def receive(self) -> tuple[bytes, list[bytes], str]:
        """The next message: its sender's identity, its frames, and the name of its sender's key,
        which no client of this machine has. Raises `zmq.Again`.
        """
        if not self.is_far:
            identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            return identity, frames, ""
        sender, *parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        key_name = str(parts[-1].get("User-Id")) if parts else ""
        return sender.bytes, [part.bytes for part in parts], key_name

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
    try:
        router.bind(far.address)
    except zmq.ZMQError as error:
        router.close(linger=0)
        raise ValueError(f"cannot listen at {far.address}: {error.strerror}") from None
    logger.info("listening at %s, with the public key %s", far.address, keys.public.hex())
    if not keys.trusted:
        logger.warning("nobody can come yet: %s is empty", Path(far.keys, TRUSTED))
    return Door(router, prefix="far-", is_far=True, permits=tuple(far.permits))


class Gatekeeper:
    """Answers libzmq's question whether a key may come in (ZeroMQ's RFC 27).

    Files that come, go or change in the folder count from the next connection on. One per context.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", folder: Path) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ZAP_ADDRESS)
        self._folder = folder
        self._trusted: Mapping[bytes, str] = {}
        self._stamp: tuple[int, ...] = ()
        self._num_untold = 0
        self._told_at = 0.0

    def answer(self) -> None:
        """Answer all questions that have come. Never raises for what a stranger sends."""
        with contextlib.suppress(zmq.Again):
            while True:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
                name = self._name_of(frames)
                status, text = (b"200", b"") if name else (b"400", b"this key is not trusted")
                version, request_id, *_ = [*frames, b"", b""]
                reply = [version, request_id, status, text, (name or "").encode(), b""]
                self.socket.send_multipart(reply)

    def close(self) -> None:
        self.socket.close(linger=0)

    def _name_of(self, frames: list[bytes]) -> str | None:
        if len(frames) != ZAP_FRAMES or frames[5] != b"CURVE":
            return None
        address, key = frames[3].decode("latin-1"), frames[6]
        try:
            stamp = stamp_of_trusted(self._folder)
            if stamp != self._stamp:
                self._trusted = read_trusted(self._folder)
                self._stamp = stamp
        except (OSError, KeysError) as error:
            logger.error("nobody is let in: %s", error)
            return None
        name = self._trusted.get(key)
        if name is None:
            self._tell(address, key)
        else:
            logger.info("%s comes in from %s", name, address)
        return name

    def _tell(self, address: str, key: bytes) -> None:
        """Strangers may knock often."""
        self._num_untold += 1
        now = time.monotonic()
        if now - self._told_at >= LOG_SECONDS:
            num, self._num_untold, self._told_at = self._num_untold, 0, now
            logger.warning(
                "refused %d times: the last at %s, with the key %s", num, address, key.hex()
            )


def _router(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    router = context.socket(zmq.ROUTER)
    router.set(zmq.ROUTER_MANDATORY, 1)  # else what cannot be delivered vanishes
    router.set(zmq.LINGER, LINGER_MS)
    return router
