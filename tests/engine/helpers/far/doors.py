"""An `IoThread` with a door for other machines, and peers that say there what they like."""

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine.core.io_thread import IoThread
from engine.far.keys import Keys, read_keys
from engine.far.sockets import set_client
from engine.ipc import (
    CoreMessage,
    Hello,
    Ping,
    Pong,
    Ready,
    decode_core_message,
    encode,
)
from tests.engine.core.test_io_thread import make_ready
from tests.engine.helpers.fakes import make_scheduler
from tests.engine.helpers.far.machines import Machines
from tests.helpers.patience import PATIENCE

POLL_MS = 50  # for room to send; whether the connection is closed is asked as often


class FarPeer:
    """One socket at the far door: says what it likes, with the keys of a folder or with none."""

    def __init__(self, address: str, name: str, keys: Keys | None, *, max_read: int = 1000) -> None:
        self.name = name
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, name.encode())
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVHWM, max_read)
        if keys is not None:
            set_client(self._socket, keys, address)
        self._socket.set(zmq.RECONNECT_IVL, -1)
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        self._monitor = self._socket.get_monitor_socket(events)
        self._socket.connect(address)

    def send(self, message: Any) -> None:
        """Drop the message if the core has closed the connection, where `zmq` waits for ever."""
        self._send_parts([message if isinstance(message, bytes) else encode(message)])

    def send_parts(self, part: bytes, number: int) -> None:
        """One message of so many; the same if the core has closed the connection."""
        self._send_parts([part] * number)

    def _send_parts(self, parts: list[bytes]) -> None:
        while not self.is_closed:
            if self._socket.poll(POLL_MS, zmq.POLLOUT):
                self._socket.send_multipart(parts, zmq.NOBLOCK)
                return

    def receive(self) -> CoreMessage:
        assert self._socket.poll(int(PATIENCE * 1000)), "nothing comes"
        message: CoreMessage = decode_core_message(self._socket.recv())
        return message

    def join(self, **fields: Any) -> Ready:
        self.send(Hello(self.name, os.getpid(), **fields))
        ready = self.receive()
        assert isinstance(ready, Ready)
        return ready

    @property
    def is_closed(self) -> bool:
        """By the core."""
        return bool(self._monitor.poll(0))

    def wait_until_closed(self) -> None:
        """By the core."""
        assert self._monitor.poll(int(PATIENCE * 1000)), "it is still open"

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()


class FarIo:
    """An `IoThread` with a far door, its keys, and the messages that it has parsed."""

    def __init__(self, folder: Path, decoded: list[bytes] | None = None, **options: Any) -> None:
        self.machines = Machines(folder)
        self.decoded = [] if decoded is None else decoded  # by whoever notes them
        self.keys = read_keys(self.machines.of_client)
        self._sockets = tempfile.TemporaryDirectory(prefix="parley-")
        address = f"ipc://{self._sockets.name}/core.sock"
        door = self.machines.door(permits=options.pop("permits", []))
        ready = make_ready(address)
        config = msgspec.structs.replace(ready.config, model="/secret", enable_lora=True, far=door)
        ready = msgspec.structs.replace(ready, config=config)
        stats = make_scheduler().stats()
        self.thread = IoThread(
            address, ready, lambda ping: Pong(ping.number, 1, 0.0, stats), far=door, **options
        )
        self.thread.start()
        self._peers: list[FarPeer] = []

    def peer(self, name: str, keys: Keys | None, **options: Any) -> FarPeer:
        self._peers.append(FarPeer(self.machines.address, name, keys, **options))
        return self._peers[-1]

    def check_good(self) -> None:
        """A client whose key is trusted is served."""
        peer = self.peer("good", self.keys)
        peer.join()
        peer.send(Ping(4711))
        pong = peer.receive()
        assert isinstance(pong, Pong) and pong.number == 4711

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self.thread.close("the test has ended")
        self._sockets.cleanup()


def port_of(io: FarIo) -> int:
    """Of the door."""
    return int(io.machines.address.rpartition(":")[2])
