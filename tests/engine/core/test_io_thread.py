"""The core's end of the socket: peers that talk nonsense, fall silent, do not read, or die."""

import ast
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

import engine
from engine.config import EngineConfig
from engine.core import io_thread as core_io
from engine.core.doors import Door, Mail
from engine.core.io_thread import ClientGone, ClientSilent, InboxItem, IoThread
from engine.ipc import (
    PROTOCOL_VERSION,
    Abort,
    CoreMessage,
    Dead,
    Hello,
    Ping,
    Pong,
    Ready,
    SchedulerStats,
    SequenceOutput,
    StepOutputs,
    Utility,
    UtilityReply,
    decode_core_message,
    encode,
)
from tests.engine.helpers.fakes import make_request, make_scheduler
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time

FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


class Peer:
    """One DEALER socket: says what it likes."""

    def __init__(self, address: str, name: str = "", *, pid: int | None = None) -> None:
        self.name = name
        self._pid = os.getpid() if pid is None else pid
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        if name:
            self._socket.set(zmq.IDENTITY, name.encode())
        self._socket.set(zmq.LINGER, 1000)
        self._socket.connect(address)

    def join(self) -> None:
        self.send(encode(Hello(self.name, self._pid)))
        assert isinstance(self.receive(), Ready)

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def receive(self) -> CoreMessage:
        assert self._socket.poll(int(PATIENCE * 1000)), "nothing comes"
        message: CoreMessage = decode_core_message(self._socket.recv())
        return message

    def check_heard(self) -> None:
        """The core answers this peer."""
        self.send(encode(Ping(4711)))
        while not isinstance(message := self.receive(), Pong):
            pass
        assert message.number == 4711

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def make_ready(address: str) -> Ready:
    config = EngineConfig(model="", address=address, served_model_name="")
    return Ready(
        epoch=1,
        pid=os.getpid(),
        max_model_len=200,
        num_blocks=64,
        block_size=16,
        vocab_size=1000,
        eos_token_ids=[0],
        max_num_seqs=8,
        dtype="float32",
        attn_backend="none",
        pace=0.0,
        config=config,
    )


class Io:
    """An `IoThread` with peers, closed together."""

    def __init__(self, folder: str, *, starts: bool = True, **options: Any) -> None:
        self.address = f"ipc://{folder}/core.sock"
        stats = make_scheduler().stats()
        ready = make_ready(self.address)
        self.thread = IoThread(
            self.address, ready, lambda ping: Pong(ping.number, 1, 0.0, stats), **options
        )
        if starts:
            self.thread.start()
        self._peers: list[Peer] = []

    def peer(self, name: str = "", *, joins: bool = True, **options: Any) -> Peer:
        peer = Peer(self.address, name, **options)
        self._peers.append(peer)
        if joins:
            peer.join()
        return peer

    def next(self) -> InboxItem:
        """What the step loop would see next."""
        return self.thread.inbox.get(timeout=PATIENCE)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        if self.thread.is_alive():
            self.thread.close("the test has ended")


@pytest.fixture
def build() -> Iterator[Callable[..., Io]]:
    built: list[Io] = []
    with tempfile.TemporaryDirectory(prefix="parley-") as folder:  # a socket's path must be short

        def build(**options: Any) -> Io:
            built.append(Io(folder, **options))
            return built[-1]

        yield build
        for io in built:
            io.close()


@pytest.fixture
def io(build: Callable[..., Io]) -> Io:
    return build()


def test_messages_arrive_in_order_and_aborts_also_ahead(io: Io) -> None:
    peer = io.peer("a")
    messages = [make_request("r"), Abort(["r"]), Utility(1, "metrics")]
    for message in messages:
        peer.send(encode(message))
    assert [io.next() for _ in messages] == [("a", message) for message in messages]
    assert list(io.thread.aborts) == [("a", messages[1])]


def nested(depth: int) -> bytes:
    """A utility whose argument is a list in a list in a list ..."""
    return encode(Utility(1, "metrics"))[:-1] + b"\x91" * depth + b"\xc0"


GARBAGE = {
    "empty": [b""],
    "no msgpack": [b"\xc1"],
    "words": [b"GET / HTTP/1.1\r\n\r\n"],
    "cut off": [encode(make_request("r"))[:-3]],
    "two frames": [encode(Ping(1)), encode(Ping(1))],
    "unknown message": [msgspec.msgpack.encode(["launch", 1])],
    "wrong types": [msgspec.msgpack.encode(["abort", [1, 2], None])],
    "a thousand million items": [b"\xdd\xff\xff\xff\xff"],
    "nested too deep": [nested(200_000)],
    "refused parameters": [
        encode(make_request("r")).replace(msgspec.msgpack.encode(16), msgspec.msgpack.encode(-2))
    ],
}


@pytest.mark.row("E9")
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_makes_its_sender_a_dead_client_and_touches_no_other(
    io: Io, garbage: list[bytes]
) -> None:
    good, bad, stranger = io.peer("good"), io.peer("bad"), io.peer(joins=False)
    stranger.send(*garbage)
    bad.send(*garbage)
    assert io.next() == ClientGone("bad")
    assert isinstance(bad.receive(), Dead)  # whoever it is, it shall not wait for ever
    good.check_heard()
    bad.join()  # it may try again
    bad.check_heard()


@pytest.mark.parametrize("seed", range(3))
def test_mutated_messages_never_end_the_thread(io: Io, seed: int) -> None:
    rng = random.Random(seed)
    good, bad = io.peer("good"), io.peer("bad")
    originals = [make_request("r", 40, stop=["x"], seed=5), Abort(["r"]), Utility(3, "x", [1, "y"])]
    payloads = [encode(message) for message in [*originals, Ping(1), Hello("bad", 1)]]
    for _ in range(1000):
        payload = bytearray(rng.choice(payloads))
        for _ in range(rng.randrange(1, 6)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        bad.send(bytes(payload[: rng.randrange(1, len(payload) + 1)]))
    good.check_heard()


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**63 - 1, 2**64 - 1])
def test_a_process_that_cannot_be_watched_is_served_all_the_same(io: Io, pid: int) -> None:
    io.peer("a", pid=pid).check_heard()


def test_strangers_hear_that_they_are(io: Io) -> None:
    stranger = io.peer("who", joins=False)
    for message in (Ping(1), make_request("r"), Utility(1, "metrics")):
        stranger.send(encode(message))
        assert isinstance(stranger.receive(), Dead)
    assert io.thread.inbox.empty()


def test_a_client_of_another_protocol_is_refused_and_stays_a_stranger(io: Io) -> None:
    old = io.peer("old", joins=False)
    old.send(encode(Hello("old", os.getpid(), protocol=PROTOCOL_VERSION + 1)))
    assert old.receive() == Dead(f"the engine core speaks protocol {PROTOCOL_VERSION}")
    old.send(encode(make_request("r")))
    assert isinstance(old.receive(), Dead)
    assert io.thread.inbox.empty()


def test_a_peer_that_leaves_before_its_answer_harms_nobody(io: Io) -> None:
    good = io.peer("good")
    for number in range(50):
        peer = Peer(io.address, f"short-{number}")
        peer.send(encode(Ping(1)))
        peer.send(encode(Hello(peer.name, os.getpid())))
        peer.close()
    good.check_heard()


def test_names_that_are_no_text_are_told_apart(io: Io) -> None:
    first, second = io.peer(joins=False), io.peer(joins=False)  # zmq gives each five raw bytes
    for peer, call_id in ((first, 1), (second, 2)):
        peer.join()
        peer.send(encode(Utility(call_id, "metrics")))
    names = {}
    for _ in range(2):
        item = io.next()
        assert isinstance(item, tuple) and isinstance(item[1], Utility)
        names[item[1].call_id] = item[0]
    for peer, call_id in ((second, 2), (first, 1)):
        io.thread.send(names[call_id], UtilityReply(call_id))
        assert peer.receive() == UtilityReply(call_id)


def test_the_end_of_a_clients_process_is_noticed_at_once(io: Io) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        io.peer("mortal", pid=process.pid)
        io.peer("other").check_heard()
        started = running_time()
        process.kill()
        assert io.next() == ClientGone("mortal")
        assert running_time() - started < 1
    io.thread.send("mortal", UtilityReply(1))  # dropped
    io.peer("third").check_heard()


def test_a_client_without_a_sign_of_life_is_reported_once_until_it_wakes(
    build: Callable[..., Io],
) -> None:
    io = build(silence_seconds=0.05)
    peer = io.peer("sleepy")
    assert io.next() == ClientSilent("sleepy")
    peer.check_heard()  # still served
    assert io.next() == ClientSilent("sleepy")
    time.sleep(0.1)  # no event tells that nothing happens
    assert io.thread.inbox.empty()


def test_a_client_that_does_not_read_is_given_up_at_the_bound(
    io: Io, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_io, "MAX_BACKLOG_BYTES", 1 << 20)
    good, lazy = io.peer("good"), io.peer("lazy")
    reply = UtilityReply(1, "x" * 100_000)
    num_sent = 0
    while io.thread.inbox.empty():
        io.thread.send("lazy", reply)
        good.check_heard()  # served all along
        num_sent += 1
        assert num_sent < 5000
    assert io.next() == ClientGone("lazy")
    last: CoreMessage = reply
    while not isinstance(last, Dead):  # it reads and pings again, and learns what it missed
        lazy.send(encode(Ping(1)))
        last = lazy.receive()


def test_a_flood_is_taken_in_turns_between_which_outputs_are_sent(
    io: Io, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [0]  # the first may have begun before they are counted
    receive, send = Door.receive, io.thread._send_outbox

    def count(door: Door) -> Mail | None:
        mail = receive(door)
        turns[-1] += 1
        return mail

    def begin_turn() -> None:
        turns.append(0)
        send()

    flooding, other = io.peer("flooding"), io.peer("other")
    monkeypatch.setattr(io.thread, "_send_outbox", begin_turn)
    other.check_heard()  # the thread is in its new turns
    monkeypatch.setattr(Door, "receive", count)
    for _ in range(20):
        for _ in range(500):
            flooding.send(encode(Utility(1, "x")))
        io.thread.send("other", UtilityReply(1))
        assert other.receive() == UtilityReply(1)
    for _ in range(20 * 500):
        assert io.next() == ("flooding", Utility(1, "x"))
    assert max(turns) <= core_io.TURN_MESSAGES


def test_long_messages_make_a_turn_short(build: Callable[..., Io]) -> None:
    io = build(starts=False)
    long = Utility(1, "x" * core_io.TURN_BYTES)
    peer = io.peer("long", joins=False)
    for message in (Hello("long", os.getpid()), *[long] * 3):
        peer.send(encode(message))
    counts: list[int] = []
    (door,) = io.thread._doors
    while sum(counts) < 3:
        assert door.socket.poll(int(PATIENCE * 1000))
        before = io.thread.inbox.qsize()
        io.thread._receive(door)
        counts.append(io.thread.inbox.qsize() - before)
    assert max(counts) == 1
    io.thread.start()


def test_of_a_message_in_many_parts_no_more_is_read_in_a_turn_than_of_others(
    build: Callable[..., Io],
) -> None:
    io = build(starts=False)
    peer = io.peer("torn", joins=False)
    peer.send(encode(Hello("torn", os.getpid())))
    peer.send(*[b"x"] * (3 * core_io.TURN_MESSAGES))
    peer.send(encode(Hello("torn", os.getpid())))
    (door,) = io.thread._doors
    for _ in range(3):
        assert door.socket.poll(int(PATIENCE * 1000))
        io.thread._receive(door)
        assert io.thread.inbox.qsize() <= 1
    io.thread.start()
    assert isinstance(peer.receive(), Ready)
    assert isinstance(dead := peer.receive(), Dead) and "several parts" in dead.reason
    assert io.next() == ClientGone("torn")
    assert isinstance(peer.receive(), Ready)  # it is welcome again


def test_long_outputs_of_a_step_come_as_several_messages(
    io: Io, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_io, "SPLIT_BYTES", 3000)
    outputs = [SequenceOutput(f"{n}" * 1000, [n]) for n in range(5)]
    outputs[3] = SequenceOutput("3" * 9000, [3])  # longer alone
    stats = SchedulerStats(0, 0, 0, 0, 0)
    peer = io.peer("reader")
    io.thread.send("reader", StepOutputs(1, 2, outputs, stats))
    got: list[SequenceOutput] = []
    num_messages = 0
    while len(got) < 5:
        message = peer.receive()
        assert isinstance(message, StepOutputs)
        assert (message.epoch, message.step, message.stats) == (1, 2, stats)
        got += message.outputs
        num_messages += 1
    assert got == outputs
    assert num_messages == 4  # 0 and 1, 2, 3, 4


def test_closing_tells_everybody_and_removes_the_socket(io: Io) -> None:
    peers = [io.peer(name) for name in "ab"]
    io.thread.close("maintenance")
    assert [peer.receive() for peer in peers] == [Dead("maintenance")] * 2
    assert not Path(io.address.removeprefix("ipc://")).exists()


def test_no_module_of_the_engine_imports_pickle() -> None:
    for path in Path(engine.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute):  # torch.load reads pickles
                names = [ast.unparse(node)]
            for name in names:
                assert name.split(".")[0] not in FORBIDDEN_MODULES and name != "torch.load", path
