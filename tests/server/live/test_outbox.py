"""`Outbox`: control frames in order, deltas merged, a bound."""

import asyncio
import json
from typing import Any

import msgspec
import orjson
import pytest
from msgspec import UNSET

from server.live import outbox as outbox_module
from server.live.outbox import HIDDEN_INTERVAL_SECONDS, MAX_BYTES, MAX_DELTA_CHARACTERS, Outbox
from server.protocol.objects import TokenLogprob
from server.protocol.server_frames import TextDelta
from tests.helpers.patience import PATIENCE


class Clock:
    """Stands for the event loop's clock; `pass_by` makes time pass without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._passed)

    def pass_by(self, seconds: float) -> None:
        self._passed += seconds


class Overflow:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def overflow() -> Overflow:
    return Overflow()


@pytest.fixture
async def outbox(overflow: Overflow) -> Outbox:
    return Outbox(overflow)


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


async def test_the_window_doubles_while_the_transport_is_slow_and_closes_again(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    outbox.put_delta("r", 1, 1, 0, ".")
    await sent(outbox)
    number = 1
    for is_slow, seconds in [(True, 0.05), (True, 0.1), (True, 0.2), (True, 0.2), (False, 0.1)]:
        outbox.note_transport(is_slow=is_slow)
        outbox.put_delta("r", number + 1, 1, number, "a")
        if number > 1:
            clock.pass_by(seconds * 0.9)
            assert await sent(outbox) == []
        outbox.put_delta("r", number + 2, 1, number + 1, "b")
        clock.pass_by(seconds * 0.1)
        assert [f["delta"] for f in await sent(outbox)] == ["ab"]
        number += 2
    for _ in range(2):
        outbox.note_transport(is_slow=False)
    outbox.put_delta("r", number + 1, 1, number, "a")
    assert [f["delta"] for f in await sent(outbox)] == ["a"]


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
    outbox.withholds = withheld.__contains__
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
