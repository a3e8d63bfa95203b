"""The connections at the far door: how many may say nothing, and who is ended while it speaks."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from engine.core import callers
from engine.core.callers import Callers
from engine.core.io_thread import ClientGone
from engine.far.keys import make_keys, read_keys, trust
from engine.ipc import Ping, Pong
from tests.engine.helpers.far.doors import FarIo, port_of
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT


@pytest.fixture
def io(tmp_path: Path) -> Iterator[FarIo]:
    made = FarIo(tmp_path)
    yield made
    made.close()


@pytest.fixture
def connect(io: FarIo) -> Iterator[Callable[[str], socket.socket]]:
    """One more connection that says nothing, from an address of this machine."""
    with contextlib.ExitStack() as stack:

        def connect(address: str) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", port_of(io)), source_address=(address, 0))
            made.settimeout(PATIENCE)
            return stack.enter_context(made)

        yield connect


def wait_until_ended(mute: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while mute.recv(4096):  # the greeting of the core's own
            pass


def is_open(mute: socket.socket) -> bool:
    mute.setblocking(False)
    try:
        while mute.recv(4096):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_of_one_address_those_go_that_have_said_nothing_for_longest(
    io: FarIo, connect: Callable[[str], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MAX_MUTE_OF_ADDRESS", 3)
    other = connect("127.0.0.2")
    mute = [connect("127.0.0.1") for _ in range(5)]
    for each in mute[:2]:
        wait_until_ended(each)
    io.check_good()  # which comes from the same address, and drives out one more for a moment
    assert is_open(other) and is_open(mute[4])


def test_of_all_addresses_those_go_that_have_said_nothing_for_longest(
    io: FarIo, connect: Callable[[str], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MAX_MUTE", 4)
    mute = [connect(f"127.0.0.{number}") for number in range(1, 7)]
    for each in mute[:2]:
        wait_until_ended(each)
    io.check_good()
    assert is_open(mute[5])


def test_who_has_spoken_is_not_driven_out(
    io: FarIo, connect: Callable[[str], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MAX_MUTE", 2)
    peers = []
    for name in "abcd":
        peers.append(io.peer(name, io.keys))
        peers[-1].join()
    first, *_ = [connect("127.0.0.1") for _ in range(3)]
    wait_until_ended(first)
    for peer in peers:
        peer.send(Ping(1))
        assert isinstance(peer.receive(), Pong)


def test_a_message_without_end_ends_its_connection_and_nothing_else(
    io: FarIo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MAX_UNFINISHED_BYTES", 1000)
    monkeypatch.setattr(callers, "LOOK_SECONDS", 0.0)
    endless, other = io.peer("endless", io.keys), io.peer("other", io.keys)
    endless.join()
    other.join()
    number = 0
    while not endless.is_closed:  # libzmq begins to send a message when it has the whole of it
        if number % 100 == 0:
            endless.send_parts(b"x" * 100_000, 300)
        number += 1
        other.send(Ping(number))
        assert isinstance(other.receive(), Pong)
    assert io.thread.inbox.get(timeout=PATIENCE) == ClientGone("far-endless")
    io.check_good()


def test_much_in_whole_messages_ends_nothing(io: FarIo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_UNFINISHED_BYTES", 10_000)
    monkeypatch.setattr(callers, "LOOK_SECONDS", 0.0)
    peer = io.peer("much", io.keys)
    peer.join()
    for number in range(2000):
        peer.send(Ping(number))
        assert isinstance(peer.receive(), Pong)
    assert not peer.is_closed


def test_the_connection_of_a_key_that_is_removed_ends(io: FarIo, tmp_path: Path) -> None:
    folder = io.machines.stranger(tmp_path / "late")
    trust(io.machines.of_core, "late", make_keys(folder))
    late, other = io.peer("late", read_keys(folder)), io.peer("other", io.keys)
    late.join()
    other.join()
    (io.machines.of_core / "trusted" / "late").unlink()
    late.wait_until_closed()
    assert io.thread.inbox.get(timeout=PATIENCE) == ClientGone("far-late")
    other.send(Ping(1))
    assert isinstance(other.receive(), Pong)


def test_keys_that_cannot_be_read_for_a_while_end_no_connection(io: FarIo) -> None:
    peer = io.peer("a", io.keys)
    peer.join()
    broken = io.machines.of_core / "trusted" / "broken"
    broken.write_text("no key\n")
    late = io.peer("late", io.keys)
    late.wait_until_closed()  # nobody is let in
    for number in range(3):
        peer.send(Ping(number))
        assert isinstance(peer.receive(), Pong)
    broken.unlink()
    io.check_good()


@pytest.fixture
def alone() -> Iterator[Callers]:
    """Of a socket to which nobody comes."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        made = Callers(router, now=iter(range(0, 100, 10)).__next__)
        yield made
        made.close()


def test_who_speaks_is_known_though_nobody_told_that_it_has_come(alone: Callers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            alone.note(far.fileno(), "far-x", "a key")
            assert alone.look(lambda: ["a key"]) == []
            assert [client_id for client_id, _ in alone.look(lambda: [])] == ["far-x"]
            assert near.recv(1) == b""


def test_a_number_that_is_another_s_by_now_ends_nothing_and_leaks_nothing(
    alone: Callers, tmp_path: Path
) -> None:
    left, right = socket.socketpair()
    with left, right, (tmp_path / "file").open("w") as file:
        num_open = len(os.listdir("/proc/self/fd"))
        for descriptor in (left.fileno(), file.fileno(), 99_999):
            assert callers._peer_of(descriptor) is None  # what an event may name that comes late
            alone.note(descriptor, "far-x", "a key")
        assert len(alone) == 0
        assert len(os.listdir("/proc/self/fd")) == num_open


FLOODED = """
import contextlib, socket, zmq
from engine.core.callers import Callers

context = zmq.Context()
router = context.socket(zmq.ROUTER)
callers = Callers(router)
port = router.bind_to_random_port("tcp://127.0.0.1")
with contextlib.suppress(TimeoutError):  # libzmq waits, and lets nobody in any more
    while True:
        socket.create_connection(("127.0.0.1", port), timeout=2.0).close()
callers.close()
router.close(linger=0)
context.term()
"""


def test_connections_of_which_nobody_has_read_hold_up_no_end() -> None:
    # In a process of its own: whoever waits for that in pyzmq stops all of Python.
    subprocess.run([sys.executable, "-c", FLOODED], cwd=ROOT, timeout=PATIENCE, check=True)
