"""The door for other machines: who is let in, and what is not even read of all others."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from engine.core import io_thread as core_io
from engine.core.doors import Gatekeeper
from engine.core.io_thread import ClientGone, IoThread
from engine.far import sockets
from engine.far.keys import Keys, make_keys, read_keys, trust
from engine.far.sizes import MAX_BYTES, MAX_OTHER_BYTES
from engine.far.sockets import MAX_REPLY_BYTES, set_client
from engine.ipc import (
    AddRequest,
    Dead,
    Hello,
    Ping,
    Pong,
    StepOutputs,
    Utility,
    UtilityReply,
    decode_client_message,
)
from engine.lora import LoRARequest
from tests.engine.core.test_io_thread import make_ready
from tests.engine.helpers.fakes import make_request
from tests.engine.helpers.far.doors import FarIo, port_of
from tests.engine.helpers.far.machines import HOST, Machines, free_address
from tests.helpers.patience import PATIENCE


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FarIo]]:
    decoded: list[bytes] = []
    decode = decode_client_message

    def note(payload: bytes) -> Any:
        decoded.append(payload)
        return decode(payload)

    monkeypatch.setattr(core_io, "decode_client_message", note)
    built: list[FarIo] = []

    def build(**options: Any) -> FarIo:
        built.append(FarIo(tmp_path, decoded, **options))
        return built[-1]

    yield build
    for io in built:
        io.close()


@pytest.fixture
def io(build: Callable[..., FarIo]) -> FarIo:
    return build()


def test_a_client_that_is_trusted_hears_what_concerns_it_and_no_paths(io: FarIo) -> None:
    ready = io.peer("a", io.keys).join()
    config = ready.config
    assert (config.model, config.address, config.far, ready.pid) == ("", "", None, 0)
    assert not config.enable_lora  # which is not permitted


@pytest.mark.parametrize("who", ["stranger", "no key", "wrong key of the core"])
def test_of_who_is_not_trusted_nothing_is_parsed(io: FarIo, who: str, tmp_path: Path) -> None:
    stranger = io.machines.stranger(tmp_path / "stranger")
    keys: Keys | None = read_keys(stranger)
    if who == "no key":
        keys = None
    elif who == "wrong key of the core":
        keys = Keys(io.keys.secret, io.keys.public, {io.keys.public: "core"})
    peer = io.peer("bad", keys)
    peer.send(Hello("bad", os.getpid()))
    peer.wait_until_closed()
    assert io.decoded == []
    io.check_good()
    assert all(b"bad" not in payload for payload in io.decoded)
    assert io.thread.inbox.empty()


GARBAGE = {
    "zeros": b"\0" * 500,
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "tls": bytes.fromhex("160301") + b"\1" * 300,
    "an endless frame": b"\xff" * 70_000,
    "plain zmtp": b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48,
    "an old zmtp": b"\xff" + b"\0" * 8 + b"\x7f\x01\x05\0\0",
    "one older": b"\x06\0bad12\x05\0hello",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_bytes_that_are_no_handshake_end_their_connection_and_nothing_else(
    io: FarIo, garbage: bytes
) -> None:
    with socket.create_connection((HOST, port_of(io))) as bad:
        bad.settimeout(PATIENCE)
        bad.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            while bad.recv(4096):
                pass
    assert io.decoded == []
    io.check_good()


def test_a_connection_that_says_nothing_is_closed(
    build: Callable[..., FarIo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_MS", 100)
    io = build()
    with socket.create_connection((HOST, port_of(io))) as silent:
        silent.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            while silent.recv(4096):  # the greeting of the core's own
                pass
    io.check_good()


def test_a_message_that_is_too_long_ends_its_connection_unread(io: FarIo) -> None:
    peer = io.peer("long", io.keys)
    peer.join()
    num_decoded = len(io.decoded)
    peer.send(b"\0" * (MAX_BYTES + 1))
    peer.wait_until_closed()
    assert len(io.decoded) == num_decoded
    io.check_good()


def test_a_message_that_would_take_long_to_read_ends_its_client_unread(io: FarIo) -> None:
    peer = io.peer("slow", io.keys)
    peer.join()
    num_decoded = len(io.decoded)
    peer.send(Utility(1, "metrics", [[]] * MAX_OTHER_BYTES))
    dead = peer.receive()
    assert isinstance(dead, Dead) and "besides token ids" in dead.reason
    assert len(io.decoded) == num_decoded
    io.check_good()


def test_what_a_client_takes_is_bounded_too() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as taking:
        key = b"\1" * 32
        set_client(taking, Keys(key, key, {key: "core"}), free_address())
        assert taking.get(zmq.MAXMSGSIZE) == MAX_REPLY_BYTES
        assert taking.get(zmq.RECONNECT_IVL) == -1


@pytest.mark.parametrize("name", ["collective_rpc", "start_profile", "add_lora", "pause", "no"])
def test_a_call_that_is_not_permitted_is_answered_without_the_step_loop(
    io: FarIo, name: str
) -> None:
    peer = io.peer("a", io.keys)
    peer.join()
    peer.send(Utility(7, name))
    reply = peer.receive()
    assert isinstance(reply, UtilityReply) and reply.call_id == 7
    assert reply.error is not None and reply.error.startswith(f"{name} is refused")
    peer.send(Utility(8, "num_unfinished"))
    assert io.thread.inbox.get(timeout=PATIENCE) == ("far-a", Utility(8, "num_unfinished"))


@pytest.mark.parametrize("permits", [[], ["lora"]])
def test_a_request_with_an_adapter_needs_a_permit(
    build: Callable[..., FarIo], permits: list[str]
) -> None:
    io = build(permits=permits)
    peer = io.peer("a", io.keys)
    assert peer.join().config.enable_lora == bool(permits)
    peer.send(make_request("r", lora=LoRARequest("x", 1, "/x")))
    if permits:
        # What else may be in an inbox is no pair; here it would fail the test.
        _, request = io.thread.inbox.get(timeout=PATIENCE)  # type: ignore[misc]
        assert isinstance(request, AddRequest)
        return
    step = peer.receive()
    assert isinstance(step, StepOutputs)
    (end,) = step.outputs
    assert (end.request_id, end.finish_reason) == ("r", "error")
    assert end.error is not None and end.error[0] == "refused_from_afar"


def test_who_has_connected_anew_ends_what_it_was_before(io: FarIo) -> None:
    old, new = io.peer("old", io.keys), io.peer("new", io.keys)
    old.join()
    new.join(replaces="old")
    assert io.thread.inbox.get(timeout=PATIENCE) == ClientGone("far-old")


def test_nobody_replaces_the_client_of_another_key(io: FarIo, tmp_path: Path) -> None:
    folder = io.machines.stranger(tmp_path / "other")
    trust(io.machines.of_core, "other", make_keys(folder))
    old, other = io.peer("old", io.keys), io.peer("other", read_keys(folder))
    old.join()
    other.join(replaces="old")
    old.send(Ping(1))
    assert isinstance(old.receive(), Pong)
    assert io.thread.inbox.empty()


def test_who_says_nothing_for_long_has_gone(build: Callable[..., FarIo]) -> None:
    io = build(far_silence_seconds=0.1)
    peer = io.peer("a", io.keys)
    peer.join()
    assert isinstance(dead := peer.receive(), Dead) and "silent" in dead.reason
    assert io.thread.inbox.get(timeout=PATIENCE) == ClientGone("far-a")


def test_who_does_not_read_has_gone_when_too_much_waits_for_it(
    build: Callable[..., FarIo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_io, "MAX_BACKLOG_BYTES", 1000)
    monkeypatch.setattr(sockets, "MAX_UNSENT", 1)
    io = build()
    peer = io.peer("slow", io.keys, max_read=1)
    peer.join()
    long = UtilityReply(1, "x" * 1_000_000)
    while io.thread.inbox.empty():  # until libzmq and the kernel have taken what they take
        io.thread.send("far-slow", long)
    assert io.thread.inbox.get(timeout=PATIENCE) == ClientGone("far-slow")
    io.check_good()


def test_keys_that_come_and_go_count_for_the_next_connection(io: FarIo, tmp_path: Path) -> None:
    folder = io.machines.stranger(tmp_path / "late")
    trust(io.machines.of_core, "late", make_keys(folder))
    io.peer("a", read_keys(folder)).join()
    (io.machines.of_core / "trusted" / "late").unlink()
    peer = io.peer("b", read_keys(folder))
    peer.wait_until_closed()
    io.check_good()


def test_a_key_that_is_written_over_another_counts_instead_of_it(io: FarIo, tmp_path: Path) -> None:
    io.check_good()
    folder = io.machines.stranger(tmp_path / "next")
    (io.machines.of_core / "trusted" / "front").write_text(make_keys(folder) + "\n")
    io.peer("old", io.keys).wait_until_closed()
    io.peer("new", read_keys(folder)).join()


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"1.0"],
        [b"1.0", b"1", b"d", b"a", b"", b"NULL"],
        [b"1.0", b"1", b"d", b"a", b"", b"CURVE", b"short"],
        [b"1.0", b"1", b"d", b"a", b"", b"PLAIN", b"user", b"word"],
    ],
)
def test_a_question_without_a_trusted_key_is_answered_with_no(
    frames: list[bytes], tmp_path: Path
) -> None:
    machines = Machines(tmp_path)
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.set(zmq.LINGER, 0)
        keeper = Gatekeeper(context, machines.of_core)
        asking.connect("inproc://zeromq.zap.01")
        asking.send_multipart([b"", *(frames or [b""])])
        assert keeper.socket.poll(int(PATIENCE * 1000))
        keeper.answer()
        _, _, _, status, *_ = asking.recv_multipart()
        assert status == b"400"
        keeper.close()


def test_an_address_that_is_taken_is_one_line(io: FarIo, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="parley-") as sockets:
        address = f"ipc://{sockets}/core.sock"
        with pytest.raises(ValueError, match=f"^cannot listen at {io.machines.address}: Address"):
            IoThread(
                address, make_ready(address), lambda ping: Pong(0, 1, 0.0), far=io.machines.door()
            )
        assert os.listdir(sockets) == []
