"""The connections at the far door: how many may say nothing, and who is ended while it speaks."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.core import callers
from engine.core.io_thread import ClientGone
from engine.far.keys import make_keys, read_keys, trust
from engine.ipc import Ping, Pong
from tests.engine.helpers.far.doors import FarIo, port_of
from tests.helpers.patience import PATIENCE


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
