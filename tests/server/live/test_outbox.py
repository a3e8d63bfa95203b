"""`Outbox`: control frames in order, what waits is merged, a bound; with a socket and without."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
import pytest
from msgspec import UNSET

from server.live import outbox as outbox_module
from server.live.outbox import (
    FRAMES_PER_TURN,
    HIDDEN_INTERVAL_SECONDS,
    MAX_BYTES,
    MAX_DELTA_CHARACTERS,
    Outbox,
    encode_text,
)
from server.protocol.objects import TokenLogprob
from server.protocol.server_frames import TextDelta
from sessions.model.events import TextEvent
from tests.helpers.patience import PATIENCE


class Clock:
    """The event loop's clock, which stands; `pass_by` makes time pass without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self._now)

    def pass_by(self, seconds: float) -> None:
        self._now += seconds


class Withheld:
    """Stands for `Rooms`: the answers of which nothing may be sent."""

    def __init__(self, response_ids: set[str]) -> None:
        self.response_ids = response_ids

    def must_withhold(self, response_id: str) -> bool:
        return response_id in self.response_ids

    withholds = must_withhold


class Overflow:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


class Socket:
    """Takes what it is given while there is room."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.room = 1_000_000  # frames
        self.times_full = 0
        self.errors: list[Exception] = []
        self.has_taken = asyncio.Event()

    def connect(self, outbox: Outbox) -> None:
        outbox.connect(self.write, self.note_full, self.errors.append)

    def write(self, frame: bytes) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.written.append(frame)
        self.has_taken.set()
        return True

    def note_full(self) -> None:
        self.times_full += 1

    def take(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
        frames = [orjson.loads(frame) for frame in self.written]
        self.written.clear()
        self.has_taken.clear()
        return frames


@pytest.fixture
def overflow() -> Overflow:
    return Overflow()


@pytest.fixture
async def outbox(overflow: Overflow) -> Outbox:
    return Outbox(overflow)


@pytest.fixture
async def socket(outbox: Outbox) -> Socket:
    """The outbox knows that it is there, and has had its turn."""
    socket = Socket()
    socket.connect(outbox)
    await asyncio.sleep(0)
    return socket


def put_text(outbox: Outbox, response_id: str, number: int, offset: int, text: str) -> None:
    """One text event, as the hub puts it."""
    event = TextEvent(offset, text)
    outbox.put_text(response_id, number, 1, event, encode_text(response_id, number, 1, event))


async def sent(outbox: Outbox) -> list[dict[str, Any]]:
    """What the writer would send now."""
    frames: list[dict[str, Any]] = []
    while True:
        getting = asyncio.ensure_future(outbox.get())
        await asyncio.sleep(0)
        if not getting.done():
            getting.cancel()
            return frames
        frames.append(orjson.loads(getting.result()))


LOGPROB = {"token": "é", "logprob": -0.5, "top": [{"token": "e", "logprob": -1.0}]}


@pytest.mark.parametrize("others", [[], ['"two"\n']])
@pytest.mark.parametrize("logprobs", [[], [LOGPROB]])
async def test_a_delta_leaves_as_the_frame_that_is_declared(
    outbox: Outbox, others: list[str], logprobs: list[dict[str, Any]]
) -> None:
    for number, delta in enumerate(["öne", *others], 5):
        outbox.put_delta("resp_" + "A" * 33, number, 2, 7, delta, logprobs)
    (frame,) = await sent(outbox)
    expected = TextDelta(
        response_id="resp_" + "A" * 33,
        sequence_number=5 + len(others),
        first_sequence_number=5 if others else UNSET,
        fence=2,
        text_offset=7,
        delta="".join(["öne", *others]),
        logprobs=[msgspec.convert(LOGPROB, TokenLogprob)] * (1 + len(others))
        if logprobs
        else UNSET,
    )
    assert frame == expected.wire()


async def test_control_frames_keep_their_order(outbox: Outbox) -> None:
    for number in range(5):
        outbox.put({"type": "pong", "t": number})
    assert [frame["t"] for frame in await sent(outbox)] == [0, 1, 2, 3, 4]


async def test_a_single_delta_has_one_number(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "Two")
    assert await sent(outbox) == [
        {
            "type": "response.output_text.delta",
            "response_id": "r",
            "sequence_number": 3,
            "fence": 1,
            "text_offset": 0,
            "delta": "Two",
        }
    ]


async def test_a_replay_from_further_back_does_not_join_what_waits(outbox: Outbox) -> None:
    for number, offset, delta in ((3, 0, "Two"), (4, 3, " plus"), (3, 0, "Two"), (4, 3, " plus")):
        outbox.put_delta("r", number, 1, offset, delta)
    frames = await sent(outbox)
    assert [(f["first_sequence_number"], f["delta"]) for f in frames] == [(3, "Two plus")] * 2


async def test_waiting_deltas_of_one_response_leave_as_one(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "Two")
    outbox.put_delta("r", 4, 1, 3, " plus")
    outbox.put_delta("r", 5, 1, 8, " two")
    (frame,) = await sent(outbox)
    assert (frame["first_sequence_number"], frame["sequence_number"]) == (3, 5)
    assert (frame["text_offset"], frame["delta"]) == (0, "Two plus two")


async def test_log_probabilities_travel_with_their_text(outbox: Outbox) -> None:
    ones: list[dict[str, Any]] = [
        {"token": token, "logprob": -0.5, "top": []} for token in ("Two", " plus")
    ]
    outbox.put_delta("r", 3, 1, 0, "Two", ones[:1])
    outbox.put_delta("r", 4, 1, 3, " plus", ones[1:])
    (frame,) = await sent(outbox)
    assert frame["logprobs"] == ones


async def test_a_waiting_delta_is_closed_before_its_log_probabilities_make_it_long(
    outbox: Outbox,
) -> None:
    one = {"token": "x" * 50, "logprob": -12.345678, "top": []}
    one["top"] = [{"token": "x" * 50, "logprob": -12.345678} for _ in range(5)]
    for number in range(1000):
        outbox.put_delta("r", number + 1, 1, number, "x", [one])
    frames = await sent(outbox)
    assert sum(len(frame["logprobs"]) for frame in frames) == 1000
    assert max(len(json.dumps(frame)) for frame in frames) < 256 * 1024


async def test_what_was_sent_is_not_merged_with_what_comes(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "a")
    (first,) = await sent(outbox)
    outbox.put_delta("r", 4, 1, 1, "b")
    (second,) = await sent(outbox)
    assert (first["delta"], second["delta"]) == ("a", "b")
    assert "first_sequence_number" not in second


async def test_responses_do_not_mix(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "a")
    outbox.put_delta("s", 3, 1, 0, "x")
    outbox.put_delta("r", 4, 1, 1, "b")
    frames = await sent(outbox)
    assert {f["response_id"]: f["delta"] for f in frames} == {"r": "ab", "s": "x"}


async def test_a_frame_of_a_response_follows_its_waiting_delta(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "a")
    outbox.put_delta("s", 3, 1, 0, "x")
    outbox.put({"type": "response.done", "response_id": "r"}, "r")
    outbox.put_delta("r", 4, 1, 1, "never after an end, but kept in order all the same")
    kinds = [(f["response_id"], f["type"][9:13]) for f in await sent(outbox)]
    assert kinds.index(("r", "outp")) < kinds.index(("r", "done"))
    assert [kind for name, kind in kinds if name == "r"] == ["outp", "done", "outp"]


async def test_another_fence_begins_another_delta(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "a")
    outbox.put_delta("r", 4, 2, 1, "b")
    assert [(f["fence"], f["delta"]) for f in await sent(outbox)] == [(1, "a"), (2, "b")]


async def test_a_delta_that_is_long_enough_takes_no_more(outbox: Outbox) -> None:
    outbox.put_delta("r", 3, 1, 0, "x" * (MAX_DELTA_CHARACTERS + 1))
    outbox.put_delta("r", 4, 1, MAX_DELTA_CHARACTERS + 1, "y")
    frames = await sent(outbox)
    assert [(f["sequence_number"], f["delta"][:1]) for f in frames] == [(3, "x"), (4, "y")]


async def test_a_hidden_page_gets_one_delta_per_interval(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    outbox.set_hidden(True)
    outbox.put_delta("r", 3, 1, 0, "a")
    assert [f["delta"] for f in await sent(outbox)] == ["a"]  # the first at once
    outbox.put_delta("r", 4, 1, 1, "b")
    clock.pass_by(HIDDEN_INTERVAL_SECONDS / 2)
    outbox.put_delta("r", 5, 1, 2, "c")
    assert await sent(outbox) == []
    clock.pass_by(HIDDEN_INTERVAL_SECONDS / 2)
    assert [f["delta"] for f in await sent(outbox)] == ["bc"]


async def test_an_interval_ends_by_itself(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "HIDDEN_INTERVAL_SECONDS", 0.01)
    outbox.set_hidden(True)
    outbox.put_delta("r", 3, 1, 0, "a")
    await outbox.get()
    outbox.put_delta("r", 4, 1, 1, "b")
    async with asyncio.timeout(PATIENCE):
        assert orjson.loads(await outbox.get())["delta"] == "b"


async def test_control_frames_do_not_wait_for_the_interval(outbox: Outbox) -> None:
    outbox.set_hidden(True)
    outbox.put_delta("r", 3, 1, 0, "a")
    await sent(outbox)
    outbox.put_delta("r", 4, 1, 1, "b")
    outbox.put({"type": "pong"})
    assert [f["type"] for f in await sent(outbox)] == ["pong"]
    outbox.put({"type": "response.done"}, "r")
    kinds = [f["type"] for f in await sent(outbox)]
    assert kinds == ["response.output_text.delta", "response.done"]


async def test_a_page_that_is_shown_again_gets_what_waits(outbox: Outbox) -> None:
    outbox.set_hidden(True)
    outbox.put_delta("r", 3, 1, 0, "a")
    await sent(outbox)
    outbox.put_delta("r", 4, 1, 1, "b")
    getting = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)
    assert not getting.done()
    outbox.set_hidden(False)
    async with asyncio.timeout(PATIENCE):
        assert orjson.loads(await getting)["delta"] == "b"


async def test_a_waiting_writer_is_woken(outbox: Outbox) -> None:
    getting = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)
    outbox.put({"type": "pong"})
    async with asyncio.timeout(PATIENCE):
        assert orjson.loads(await getting) == {"type": "pong"}


async def test_getting_can_be_cancelled_without_losing_a_frame(outbox: Outbox) -> None:
    getting = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)
    outbox.put({"type": "pong"})
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert await sent(outbox) == [{"type": "pong"}]


async def test_what_waits_is_counted_in_bytes(outbox: Outbox, overflow: Overflow) -> None:
    outbox.put_delta("A", 3, 1, 0, "日" * (MAX_BYTES // 3))
    assert overflow.times == 0
    outbox.put_delta("A", 4, 1, MAX_BYTES // 3, "本")
    assert overflow.times == 1


async def test_entries_of_one_answer_can_be_taken_back(outbox: Outbox, overflow: Overflow) -> None:
    outbox.put({"type": "response.created"}, "A")
    outbox.put({"type": "response.output_text.snapshot"}, "A", is_entry=True)
    outbox.put_delta("A", 3, 1, 0, "x" * MAX_BYTES)
    outbox.put_delta("B", 2, 1, 0, "other")
    assert outbox.withhold("A")
    assert not outbox.withhold("A")
    outbox.put({"type": "last"})
    kinds = [orjson.loads(await outbox.get())["type"] for _ in range(3)]
    assert kinds == ["response.created", "last", "response.output_text.delta"]


async def test_entries_are_asked_for_when_they_leave(outbox: Outbox) -> None:
    withheld = {"A"}
    outbox.withholder = Withheld(withheld)
    outbox.put_delta("A", 2, 1, 0, "late")
    outbox.put({"type": "control"}, "A")
    outbox.put_delta("B", 2, 1, 0, "other")
    assert [orjson.loads(await outbox.get()).get("delta") for _ in range(2)] == [None, "other"]
    withheld.clear()
    outbox.put_delta("A", 3, 1, 4, "in time")
    assert orjson.loads(await outbox.get())["delta"] == "in time"


async def test_overflow_is_reported_once(outbox: Outbox, overflow: Overflow) -> None:
    for number in range(70):
        outbox.put_delta("r", number, 1, 0, "x" * (MAX_BYTES // 64))
    assert overflow.times == 1


async def test_what_was_sent_does_not_count(outbox: Outbox, overflow: Overflow) -> None:
    for number in range(200):
        outbox.put_delta("r", number, 1, 0, "x" * (MAX_BYTES // 64))
        outbox.put({"type": "pong", "t": "y" * 1000})
        await sent(outbox)
    assert overflow.times == 0


# ---- with a socket ------------------------------------------------------------------------------


async def test_what_nothing_waits_for_leaves_in_the_call_that_puts_it(
    outbox: Outbox, socket: Socket
) -> None:
    event = TextEvent(0, "Two")
    frame = encode_text("r", 3, 1, event)
    outbox.put_text("r", 3, 1, event, frame)
    assert socket.written.pop() is frame  # made once for all who get it
    outbox.put({"type": "pong"}, "r")
    outbox.put_encoded(b'{"type":"encoded"}')
    assert [taken["type"] for taken in socket.take()] == ["pong", "encoded"]


async def test_what_was_put_before_there_was_a_socket_leaves_first(outbox: Outbox) -> None:
    outbox.put({"type": "first"})
    socket = Socket()
    socket.connect(outbox)
    outbox.put({"type": "second"})
    assert socket.take() == []
    await asyncio.sleep(0)
    assert [frame["type"] for frame in socket.take()] == ["first", "second"]


async def test_several_events_at_once_leave_as_one_delta(outbox: Outbox, socket: Socket) -> None:
    outbox.put_delta("r", 3, 1, 0, "Two")
    outbox.put_delta("r", 4, 1, 3, " plus")
    put_text(outbox, "r", 5, 8, " two")
    await asyncio.sleep(0)
    assert [frame["delta"] for frame in socket.take()] == ["Two plus two"]
    put_text(outbox, "r", 6, 12, " is")
    assert [frame["delta"] for frame in socket.take()] == [" is"]


async def test_an_entry_leaves_when_its_sender_has_noted_it(outbox: Outbox, socket: Socket) -> None:
    outbox.put({"type": "response.done"}, "r", is_entry=True)
    outbox.put({"type": "pong"})
    assert outbox.withhold("r")
    await asyncio.sleep(0)
    assert [frame["type"] for frame in socket.take()] == ["pong"]


async def test_a_full_socket_is_waited_for_and_text_is_merged_meanwhile(
    outbox: Outbox, socket: Socket
) -> None:
    socket.room = 1
    put_text(outbox, "r", 3, 0, "a")
    put_text(outbox, "r", 4, 1, "b")  # is refused
    outbox.put({"type": "pong"})
    await asyncio.sleep(0)
    assert [frame["delta"] for frame in socket.take()] == ["a"]
    assert socket.times_full == 1
    put_text(outbox, "r", 5, 2, "c")
    outbox.put({"type": "response.done"}, "r", is_entry=True)
    await asyncio.sleep(0)
    assert socket.times_full == 1  # nothing is tried before there is room
    socket.room = 1_000_000
    outbox.go_on()
    first, *rest = socket.take()
    assert first["type"] == "pong"  # what was refused had not closed its delta yet
    assert [(frame["type"][9:13], frame.get("delta")) for frame in rest] == [
        ("outp", "bc"),
        ("done", None),
    ]
    assert not socket.errors


async def test_a_frame_that_the_socket_refuses_stays_the_first_and_may_be_taken_back(
    outbox: Outbox, socket: Socket
) -> None:
    socket.room = 0
    outbox.put_delta("A", 3, 1, 0, "x")
    outbox.put_replay("B", iter([b'{"n":1}', b'{"n":2}']), 2)
    outbox.put_delta("A", 4, 1, 0, "y")
    await asyncio.sleep(0)
    assert socket.times_full == 1
    outbox.withhold("A")
    socket.room = 1
    outbox.go_on()
    assert socket.take() == [{"n": 1}]
    assert socket.times_full == 2
    socket.room = 1
    outbox.go_on()
    assert socket.take() == [{"n": 2}]


@pytest.mark.parametrize(
    ("num_refusals", "windows"), [(1, []), (2, [0.05]), (3, [0.1, 0.05]), (5, [0.1, 0.05])]
)
async def test_the_window_doubles_while_the_socket_is_slow_and_closes_with_each_frame_it_takes(
    outbox: Outbox,
    socket: Socket,
    monkeypatch: pytest.MonkeyPatch,
    num_refusals: int,
    windows: list[float],
) -> None:
    clock = Clock(monkeypatch)

    async def after(seconds: float) -> list[str]:
        clock.pass_by(seconds)
        outbox.set_hidden(False)  # lets it look at the clock
        await asyncio.sleep(0)
        return [frame["delta"] for frame in socket.take()]

    for _ in range(num_refusals):
        socket.room = 0
        outbox.put({"type": "pong"})
        await asyncio.sleep(0)
        socket.room = 1
        outbox.go_on()
        assert len(socket.take()) == 1
    socket.room = 1_000_000
    put_text(outbox, "r", 1, 0, "a")
    assert await after(0.0) == ["a"]
    for number, window in enumerate(windows, 1):
        put_text(outbox, "r", 2 * number, 0, "b")
        assert await after(0.9 * window) == []
        put_text(outbox, "r", 2 * number + 1, 0, "c")
        assert await after(0.11 * window) == ["bc"]
    put_text(outbox, "r", 100, 0, "d")
    assert [frame["delta"] for frame in socket.take()] == ["d"]


async def test_a_hidden_page_gets_its_delta_when_the_interval_ends(
    outbox: Outbox, socket: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "HIDDEN_INTERVAL_SECONDS", 0.01)
    outbox.set_hidden(True)
    put_text(outbox, "r", 3, 0, "a")
    await asyncio.sleep(0)
    assert [frame["delta"] for frame in socket.take()] == ["a"]
    put_text(outbox, "r", 4, 1, "b")
    outbox.put({"type": "pong"})
    await asyncio.sleep(0)
    assert [frame["type"] for frame in socket.take()] == ["pong"]
    async with asyncio.timeout(PATIENCE):
        await socket.has_taken.wait()
    assert [frame["delta"] for frame in socket.take()] == ["b"]


async def test_much_that_waits_leaves_in_several_turns(outbox: Outbox, socket: Socket) -> None:
    frames = (b'{"n":%d}' % number for number in range(2 * FRAMES_PER_TURN + 1))
    outbox.put_replay("r", frames, 1)
    outbox.put({"type": "last"})
    sizes = []
    for _ in range(3):
        await asyncio.sleep(0)
        sizes.append(len(socket.take()))
    assert sizes == [FRAMES_PER_TURN, FRAMES_PER_TURN, 2]


async def test_text_of_an_answer_that_may_be_another_s_is_taken_back_when_its_sender_is_done(
    outbox: Outbox, socket: Socket
) -> None:
    asked: list[str] = []

    class Noting(Withheld):
        def withholds(self, response_id: str) -> bool:
            asked.append(response_id)
            return self.must_withhold(response_id)

    outbox.withholder = withheld = Noting({"A"})
    put_text(outbox, "A", 3, 0, "late")
    assert not asked  # what it brings about must not come amid of what its sender does
    put_text(outbox, "B", 3, 0, "other")
    await asyncio.sleep(0)
    assert asked[0] == "A"
    assert [frame["delta"] for frame in socket.take()] == ["other"]
    withheld.response_ids.clear()
    put_text(outbox, "A", 4, 4, "in time")
    assert [frame["delta"] for frame in socket.take()] == ["in time"]


async def test_more_than_may_wait_is_too_much_even_if_nothing_waits(
    outbox: Outbox, socket: Socket, overflow: Overflow
) -> None:
    outbox.put_encoded(b"x" * (MAX_BYTES + 1))
    assert overflow.times == 1
    assert not socket.written


async def test_the_owner_of_the_socket_hears_what_cannot_be_written(
    outbox: Outbox, socket: Socket
) -> None:
    def broken() -> Iterator[bytes]:
        raise ZeroDivisionError
        yield

    outbox.put_replay("r", broken(), 1)
    await asyncio.sleep(0)
    assert [type(error) for error in socket.errors] == [ZeroDivisionError]


async def test_after_the_end_nothing_leaves(outbox: Outbox, socket: Socket) -> None:
    outbox.put_delta("r", 3, 1, 0, "a")
    outbox.disconnect()
    outbox.put({"type": "pong"})
    outbox.go_on()
    await asyncio.sleep(0)
    assert not socket.written


@pytest.mark.parametrize("seed", range(50))
async def test_everything_arrives_in_order_over_a_socket_that_does_anything(
    outbox: Outbox, socket: Socket, overflow: Overflow, seed: int
) -> None:
    dice = random.Random(seed)
    texts = {"A": "", "B": ""}
    numbers = {"A": 1, "B": 1}
    num_controls = 0
    for _ in range(200):
        match dice.randrange(8):
            case 0 | 1 | 2:
                rid = dice.choice("AB")
                numbers[rid] += 1
                put_text(outbox, rid, numbers[rid], len(texts[rid]), f"{numbers[rid]} ")
                texts[rid] += f"{numbers[rid]} "
            case 3:
                rid = dice.choice("AB")
                numbers[rid] += 1
                entry = {"type": "entry", "response_id": rid, "sequence_number": numbers[rid]}
                outbox.put(entry, rid, is_entry=True)
            case 4:
                num_controls += 1
                outbox.put({"type": "control", "n": num_controls})
            case 5:
                outbox.set_hidden(dice.random() < 0.5)
            case 6:
                was_full, socket.room = not socket.room, dice.choice((0, 1, 3, 1_000_000))
                if was_full and socket.room:
                    outbox.go_on()
            case _:
                await asyncio.sleep(0)
    outbox.set_hidden(False)
    socket.room = 1_000_000
    outbox.go_on()
    for rid in texts:
        numbers[rid] += 1
        outbox.put({"type": "end", "response_id": rid, "sequence_number": numbers[rid]}, rid)
    for _ in range(200):
        await asyncio.sleep(0)
    frames = socket.take()
    assert [f["n"] for f in frames if f["type"] == "control"] == list(range(1, num_controls + 1))
    for rid, text in texts.items():
        ours = [frame for frame in frames if frame.get("response_id") == rid]
        assert "".join(frame.get("delta", "") for frame in ours) == text
        last = 1
        for frame in ours:  # none is missing, none comes twice
            assert frame.get("first_sequence_number", frame["sequence_number"]) == last + 1
            last = frame["sequence_number"]
        assert last == numbers[rid]
    assert not socket.errors
    assert not overflow.times
