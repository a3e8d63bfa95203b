"""Sleep in the step loop: what becomes of requests, of calls, and of the clients that made them.

`Memory` takes again when the test lets it, as weights may take minutes to read.
"""

import threading
from queue import Empty
from typing import Any

import pytest

from engine.core.io_thread import ClientGone, Shutdown
from engine.core.sleep import SleepingParts
from engine.ipc import Ping, Utility, UtilityReply
from tests.engine.helpers.fakes import SteppedCore
from tests.helpers.patience import PATIENCE

MODES = ("abort", "wait", "keep")


class Memory:
    """Notes what is asked of it. `hold` keeps the next part from coming."""

    def __init__(self) -> None:
        self.asked: list[str | int] = []
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def give_back(self, level: int) -> None:
        self.asked.append(level)

    def take_again(self, tag: str) -> None:
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.asked.append(tag)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def core(memory: Memory) -> SteppedCore:
    return SteppedCore(memory=memory)


def call(core: SteppedCore, name: str, *args: Any, call_id: int = 1, client_id: str = "me") -> None:
    core.core.inbox.put((client_id, Utility(call_id, name, list(args))))


def replies(core: SteppedCore, client_id: str = "me") -> list[UtilityReply]:
    return [
        message
        for owner, message in core.sent
        if owner == client_id and isinstance(message, UtilityReply)
    ]


def ask(core: SteppedCore, name: str, *args: Any) -> Any:
    """The value of a call, as soon as it is answered; RuntimeError for an error."""
    num_replies = len(replies(core))
    call(core, name, *args)
    core.core.step()
    while len(replies(core)) == num_replies:
        assert core.core.is_waking
        core.core.wait()  # until the memory is here
    (reply,) = replies(core)[num_replies:]
    if reply.error is not None:
        raise RuntimeError(reply.error)
    return reply.value


def wait_for_memory(core: SteppedCore) -> None:
    while core.core.is_waking:
        core.core.wait()


# ---- what becomes of requests


def test_abort_ends_what_is_here_and_what_comes_is_refused(
    core: SteppedCore, memory: Memory
) -> None:
    core.add("running", max_tokens=50)
    core.core.step()
    assert ask(core, "sleep", 1, "abort") is None
    core.add("new", max_tokens=5)
    core.run()
    assert core.end("running").finish_reason == "abort"
    assert core.end("new").error == ("paused", "the engine is asleep")
    assert memory.asked == [1]
    ask(core, "wake_up")
    core.add("later", max_tokens=5)
    core.run()
    assert len(core.tokens("later")) == 5
    core.check_all_free()


def test_wait_falls_asleep_when_what_is_here_has_ended(core: SteppedCore, memory: Memory) -> None:
    core.add("old", max_tokens=5)
    core.core.step()
    call(core, "sleep", 2, "wait")
    core.core.step()
    assert (replies(core), memory.asked) == ([], [])
    core.run()
    assert replies(core) == [UtilityReply(1)] and memory.asked == [2]
    assert len(core.tokens("old")) == 5


@pytest.mark.parametrize("level", [1, 2])
def test_keep_goes_on_with_the_same_tokens_and_holds_no_block_meanwhile(
    core: SteppedCore, level: int
) -> None:
    core.add("old", num_prompt_tokens=9, max_tokens=6)
    for _ in range(3):
        core.core.step()
    ask(core, "sleep", level, "keep")
    assert core.scheduler.blocks.num_free == core.scheduler.blocks.num_blocks
    core.add("new", max_tokens=2)
    for _ in range(5):
        assert not core.core.step()
    num_steps = len(core.model.steps)
    ask(core, "wake_up")
    core.run()
    assert len(core.model.steps) > num_steps
    assert (core.tokens("old"), core.tokens("new")) == ([10, 11, 12, 13, 14, 15], [4, 5])
    assert core.end("old").num_preemptions == 1
    core.check_all_free()


def test_kept_and_new_requests_can_be_aborted_while_asleep(core: SteppedCore) -> None:
    core.add("old", max_tokens=50)
    core.core.step()
    ask(core, "sleep", 1, "keep")
    core.add("new", max_tokens=50)
    core.abort("old", "new")
    core.core.step()
    assert core.end("old").finish_reason == core.end("new").finish_reason == "abort"
    core.check_all_free()


def test_requests_can_be_aborted_while_memory_is_taken(core: SteppedCore, memory: Memory) -> None:
    core.add("old", max_tokens=50)
    core.core.step()
    ask(core, "sleep", 2, "keep")
    memory.gate.clear()
    call(core, "wake_up")
    core.core.step()
    core.abort("old")
    core.core.step()
    assert core.end("old").finish_reason == "abort" and core.core.is_waking
    memory.gate.set()
    wait_for_memory(core)


def test_prefixes_are_forgotten(core: SteppedCore) -> None:
    for name in ("first", "second"):
        core.add(name, num_prompt_tokens=9, max_tokens=1)
        core.run()
    assert core.end("second").num_cached_tokens == 8
    ask(core, "sleep", 1, "abort")
    ask(core, "wake_up")
    core.add("third", num_prompt_tokens=9, max_tokens=1)
    core.run()
    assert core.end("third").num_cached_tokens == 0


def test_a_step_in_flight_ends_before_its_memory_is_given_back(memory: Memory) -> None:
    core = SteppedCore(memory=memory, runs_ahead=True)
    core.add("r", max_tokens=6)
    for _ in range(3):
        core.core.step()
    assert core.core._in_flight is not None
    call(core, "sleep", 1, "wait")
    while not memory.asked:
        assert core.core.step()
        assert not memory.asked or core.core._in_flight is None
    assert len(core.tokens("r")) == 6
    ask(core, "wake_up")
    core.check_all_free()


# ---- levels and tags


@pytest.mark.parametrize("end", [("wake_up",), ("wake_up", ["scheduling"]), ("resume",)])
def test_level_0_is_a_pause_that_forgets_nothing(
    core: SteppedCore, memory: Memory, end: tuple[Any, ...]
) -> None:
    core.add("r", max_tokens=6)
    core.core.step()
    ask(core, "sleep", 0, "keep")
    assert ask(core, "is_sleeping") is ask(core, "is_paused") is True
    assert not core.core.step() and memory.asked == []
    ask(core, *end)
    assert ask(core, "is_sleeping") is ask(core, "is_paused") is False
    core.run()
    assert core.end("r").num_preemptions == 0 and len(core.tokens("r")) == 6


def test_parts_wake_up_by_their_tags_and_the_last_ends_the_sleep(
    core: SteppedCore, memory: Memory
) -> None:
    core.add("r", max_tokens=3)
    ask(core, "sleep", 2, "keep")
    ask(core, "wake_up", ["weights"])
    assert ask(core, "is_sleeping") is True and not core.core.step()
    ask(core, "wake_up", ["weights"])
    assert memory.asked == [2, "weights"]
    ask(core, "wake_up", ["kv_cache"])
    assert memory.asked == [2, "weights", "kv_cache"]
    assert ask(core, "is_sleeping") is ask(core, "is_paused") is False
    core.run()
    assert len(core.tokens("r")) == 3


def test_unknown_tags_levels_and_modes_are_errors_and_change_nothing(
    core: SteppedCore, memory: Memory
) -> None:
    with pytest.raises(RuntimeError, match="sideways"):
        ask(core, "sleep", 1, "sideways")
    with pytest.raises(RuntimeError, match="level 3"):
        ask(core, "sleep", 3, "abort")
    assert ask(core, "is_sleeping") is ask(core, "is_paused") is False
    ask(core, "sleep", 1, "abort")
    with pytest.raises(RuntimeError, match="tag 'loras'"):
        ask(core, "wake_up", ["weights", "loras"])
    assert ask(core, "is_sleeping") is True and memory.asked == [1]


# ---- again


def test_sleeping_twice_sleeps_as_deep_as_the_deeper_one(core: SteppedCore, memory: Memory) -> None:
    for level in (1, 2, 1):
        ask(core, "sleep", level, "abort")
    assert memory.asked == [1, 2, 1]  # memory gives back only what it has
    ask(core, "wake_up")
    assert ask(core, "is_sleeping") is False


def test_waking_twice_and_waking_what_is_awake_do_nothing(
    core: SteppedCore, memory: Memory
) -> None:
    ask(core, "wake_up")
    ask(core, "sleep", 1, "abort")
    ask(core, "wake_up")
    ask(core, "wake_up")
    assert memory.asked == [1, "weights", "kv_cache"]


def test_waking_does_not_end_a_pause(core: SteppedCore) -> None:
    ask(core, "pause", "keep", True)
    ask(core, "wake_up")
    assert ask(core, "is_paused") is True and ask(core, "is_sleeping") is False


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_engine_falls_asleep_in_the_mode_of_sleep(
    core: SteppedCore, mode: str, memory: Memory
) -> None:
    core.add("r", max_tokens=6)
    core.core.step()
    ask(core, "pause", "keep", False)
    call(core, "sleep", 1, mode)
    core.run()
    assert memory.asked == [1]
    num_tokens = {"abort": 1, "wait": 6, "keep": 1}[mode]
    assert len(core.tokens("r")) == num_tokens
    ask(core, "wake_up")
    assert ask(core, "is_paused") is False
    core.run()
    assert len(core.tokens("r")) == (1 if mode == "abort" else 6)


def test_waiting_while_asleep_leaves_kept_requests_where_they_are(
    core: SteppedCore, memory: Memory
) -> None:
    core.add("r", max_tokens=6)
    core.core.step()
    ask(core, "sleep", 1, "keep")
    ask(core, "sleep", 2, "wait")
    assert memory.asked == [1, 2]
    ask(core, "wake_up")
    core.run()
    assert len(core.tokens("r")) == 6


def test_resuming_cannot_end_sleep(core: SteppedCore) -> None:
    ask(core, "sleep", 1, "keep")
    core.add("r", max_tokens=2)
    with pytest.raises(RuntimeError, match="wake_up"):
        ask(core, "resume")
    assert not core.core.step()
    ask(core, "wake_up")
    core.run()
    assert len(core.tokens("r")) == 2


@pytest.mark.parametrize("call_off", ["wake_up", "resume"])
def test_sleep_that_still_waits_can_be_called_off(
    core: SteppedCore, memory: Memory, call_off: str
) -> None:
    core.add("r", max_tokens=20)
    core.core.step()
    call(core, "sleep", 1, "wait", call_id=1)
    core.core.step()
    assert ask(core, "is_sleeping") is True
    call(core, call_off, call_id=3)
    core.core.step()
    assert {reply.call_id for reply in replies(core)} == {1, 3}
    core.run()
    assert len(core.tokens("r")) == 20 and memory.asked == []
    assert ask(core, "is_sleeping") is False


# ---- while memory is taken


def test_calls_wait_until_memory_is_here_and_come_in_turn(
    core: SteppedCore, memory: Memory
) -> None:
    ask(core, "sleep", 1, "abort")
    memory.gate.clear()
    call(core, "wake_up", call_id=2)
    call(core, "sleep", 2, "abort", call_id=3)
    call(core, "wake_up", call_id=4)
    call(core, "is_sleeping", call_id=5)
    core.core.step()
    assert [reply.call_id for reply in replies(core)[1:]] == [5]
    memory.gate.set()
    wait_for_memory(core)
    assert [reply.call_id for reply in replies(core)[1:]] == [5, 2, 3, 4]
    assert memory.asked == [1, "weights", "kv_cache", 2, "weights", "kv_cache"]


@pytest.mark.parametrize("comes", [True, False])
def test_sleep_that_still_waits_gives_nothing_back_while_memory_is_taken(
    core: SteppedCore, memory: Memory, comes: bool
) -> None:
    core.add("r", max_tokens=50)
    core.core.step()
    call(core, "sleep", 1, "wait", call_id=1, client_id="other")
    call(core, "sleep", 1, "keep", call_id=2)
    core.core.step()
    memory.gate.clear()
    memory.error = None if comes else MemoryError("short")
    call(core, "wake_up", call_id=3)
    core.abort("r")
    core.core.step()
    assert memory.asked == [1] and replies(core, "other") == []
    memory.gate.set()
    wait_for_memory(core)
    core.core.step()
    assert replies(core, "other") == [UtilityReply(1)]
    assert memory.asked == ([1, "weights", "kv_cache"] if comes else [1, 1])
    assert ask(core, "is_sleeping") is not comes


def test_memory_that_does_not_come_is_an_error_and_may_be_asked_for_again(
    core: SteppedCore, memory: Memory
) -> None:
    ask(core, "sleep", 2, "keep")
    core.add("r", max_tokens=2)
    memory.error = ValueError("model.safetensors: has changed")
    with pytest.raises(RuntimeError, match="has changed"):
        ask(core, "wake_up")
    assert ask(core, "is_sleeping") is True and not core.core.step()
    memory.error = None
    ask(core, "wake_up")
    core.run()
    assert len(core.tokens("r")) == 2


def test_shutting_down_does_not_wait_for_memory(core: SteppedCore, memory: Memory) -> None:
    ask(core, "sleep", 1, "abort")
    memory.gate.clear()
    call(core, "wake_up", call_id=2)
    core.core.inbox.put(Shutdown())
    core.core.run()
    assert core.core.is_waking
    memory.gate.set()


# ---- clients


def test_sleep_ends_with_the_client_that_asked_for_it(core: SteppedCore, memory: Memory) -> None:
    call(core, "sleep", 2, "keep", client_id="other")
    core.add("kept", max_tokens=5)
    core.core.inbox.put(ClientGone("a third"))
    core.run()
    assert core.tokens("kept") == []
    core.core.inbox.put(ClientGone("other"))
    core.core.step()
    wait_for_memory(core)
    core.run()
    assert len(core.tokens("kept")) == 5 and memory.asked == [2, "weights", "kv_cache"]


def test_a_client_that_goes_while_its_engine_wakes_up_changes_nothing(
    core: SteppedCore, memory: Memory
) -> None:
    core.add("r", max_tokens=5)
    call(core, "sleep", 1, "keep", client_id="other")
    memory.gate.clear()
    call(core, "wake_up", client_id="other")
    call(core, "sleep", 2, "keep", client_id="other")  # forgotten with the client
    core.core.inbox.put(ClientGone("other"))
    core.core.step()
    memory.gate.set()
    wait_for_memory(core)
    core.run()
    assert len(core.tokens("r")) == 5 and memory.asked == [1, "weights", "kv_cache"]


def test_any_client_may_wake_the_engine(core: SteppedCore) -> None:
    call(core, "sleep", 1, "abort", client_id="other")
    core.core.step()
    ask(core, "wake_up")
    assert ask(core, "is_sleeping") is False


# ---- dozing: asleep until the next request


@pytest.fixture
def drowsy(memory: Memory) -> SteppedCore:
    return SteppedCore(memory=memory, sleep_after_seconds=60.0)


def timeout_of_wait(core: SteppedCore) -> float | None:
    """For how long the loop would now wait for a message."""
    timeouts: list[float | None] = []

    class Inbox:
        def get_nowait(self) -> Any:
            raise Empty

        def get(self, timeout: float | None) -> Any:
            timeouts.append(timeout)
            raise Empty

    inbox, core.core.inbox = core.core.inbox, Inbox()  # type: ignore[assignment]  # it notes
    core.core.wait()
    core.core.inbox = inbox
    return timeouts[0]


def fall_asleep(core: SteppedCore) -> None:
    core.time += 60
    assert timeout_of_wait(core) is None
    assert ask(core, "is_sleeping") is True


def test_an_idle_core_falls_asleep_after_its_time(drowsy: SteppedCore, memory: Memory) -> None:
    assert timeout_of_wait(drowsy) == 60
    drowsy.time += 50
    drowsy.add("r", max_tokens=5)
    drowsy.run()
    assert timeout_of_wait(drowsy) == 60 and memory.asked == []  # since the last step
    drowsy.time += 59
    assert timeout_of_wait(drowsy) == 1
    fall_asleep(drowsy)
    assert memory.asked == [1]
    assert ask(drowsy, "is_paused") is False
    assert ask(drowsy, "metrics")["sleeping"] == 1
    assert drowsy.core.pong(Ping(1)).stats == drowsy.scheduler.stats()
    assert drowsy.scheduler.stats().is_sleeping


def test_a_core_that_has_stood_by_is_awake_when_it_begins_to_serve(
    drowsy: SteppedCore, memory: Memory
) -> None:
    drowsy.time += 1000
    drowsy.core.inbox.put(Shutdown())
    drowsy.core.run()
    assert timeout_of_wait(drowsy) == 60 and memory.asked == []


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_without_the_setting_or_with_a_request_nobody_falls_asleep(
    memory: Memory, seconds: float | None
) -> None:
    core = SteppedCore(memory=memory, sleep_after_seconds=seconds, pace=10.0)
    if seconds:
        core.add("r", max_tokens=50)
        core.core.step()
    core.time += 1000
    timeout_of_wait(core)
    assert memory.asked == [] and ask(core, "is_sleeping") is False


def test_a_request_wakes_the_core_and_its_client_hears_of_it(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    memory.gate.clear()
    drowsy.add("one", max_tokens=3)
    drowsy.add("two", max_tokens=3, client_id="other")
    for _ in range(3):
        assert not drowsy.core.step()
    for name, client in (("one", "me"), ("two", "other")):
        (announced,) = drowsy.outputs(name, client)
        assert announced.is_waking and (announced.queue_position, announced.new_token_ids) == (
            0,
            [],
        )
    memory.gate.set()
    wait_for_memory(drowsy)
    drowsy.run()
    assert drowsy.tokens("one") == drowsy.tokens("two", "other") == [4, 5, 6]
    assert not any(output.is_waking for output in drowsy.outputs("one")[1:])
    assert memory.asked == [1, "weights", "kv_cache"]
    assert ask(drowsy, "metrics")["sleeping"] == 0
    assert timeout_of_wait(drowsy) == 60
    drowsy.check_all_free()


def test_a_request_that_is_aborted_before_it_is_awake_ends_at_once(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    memory.gate.clear()
    drowsy.add("r", max_tokens=3)
    drowsy.core.step()
    drowsy.abort("r")
    drowsy.core.step()
    assert drowsy.end("r").finish_reason == "abort"
    memory.gate.set()
    wait_for_memory(drowsy)
    assert timeout_of_wait(drowsy) == 60


def test_a_request_that_is_refused_wakes_nobody(drowsy: SteppedCore, memory: Memory) -> None:
    fall_asleep(drowsy)
    drowsy.add("r", num_prompt_tokens=1000)
    drowsy.run()
    assert drowsy.end("r").finish_reason == "error" and memory.asked == [1]


def test_a_core_that_cannot_wake_up_fails_what_has_come_and_tries_again_for_the_next(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    memory.error = MemoryError("short")
    drowsy.add("r", max_tokens=3)
    drowsy.core.step()
    wait_for_memory(drowsy)
    drowsy.run()
    assert drowsy.end("r").error == ("engine_error", "the engine could not wake up")
    memory.error = None
    drowsy.add("again", max_tokens=3)
    drowsy.core.step()
    wait_for_memory(drowsy)
    drowsy.run()
    assert drowsy.tokens("again") == [4, 5, 6]
    drowsy.check_all_free()


@pytest.mark.parametrize("mode", MODES)
def test_a_pause_wakes_a_core_that_dozes_and_holds(drowsy: SteppedCore, mode: str) -> None:
    fall_asleep(drowsy)
    ask(drowsy, "resume")
    assert ask(drowsy, "is_sleeping") is True
    ask(drowsy, "pause", mode, True)
    assert ask(drowsy, "is_paused") is True and ask(drowsy, "is_sleeping") is False
    drowsy.core.step()  # the thread's message finds nothing to do
    drowsy.time += 1000
    assert timeout_of_wait(drowsy) is None
    assert ask(drowsy, "is_sleeping") is False  # who is paused does not doze
    ask(drowsy, "resume")
    drowsy.add("r", max_tokens=3)
    drowsy.run()
    assert drowsy.tokens("r") == [4, 5, 6]


def test_a_pause_answers_those_who_wait_for_a_core_that_dozes(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    call(drowsy, "wake_up", ["weights"], call_id=2, client_id="other")
    call(drowsy, "wake_up", call_id=3, client_id="a third")
    call(drowsy, "pause", "keep", True)
    drowsy.core.step()
    assert replies(drowsy, "other") == [UtilityReply(2)]
    assert replies(drowsy, "a third") == [UtilityReply(3)]
    assert memory.asked == [1, "weights", "kv_cache"]
    assert ask(drowsy, "is_paused") is True and ask(drowsy, "is_sleeping") is False
    assert not drowsy.core.is_waking


def test_a_pause_that_cannot_wake_the_core_ends_what_waits_for_that(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    memory.error = MemoryError("short")
    drowsy.add("r", max_tokens=3)
    with pytest.raises(RuntimeError, match="short"):
        ask(drowsy, "pause", "keep", True)
    drowsy.run()
    assert drowsy.end("r").error == ("engine_error", "the engine could not wake up")
    drowsy.check_all_free()


def test_sleep_that_was_asked_for_is_not_ended_by_a_request(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    ask(drowsy, "sleep", 2, "keep")
    drowsy.add("r", max_tokens=3)
    drowsy.run()
    assert drowsy.outputs("r") == [] and memory.asked == [1, 2]
    ask(drowsy, "wake_up")
    drowsy.run()
    assert drowsy.tokens("r") == [4, 5, 6]


def test_a_part_that_is_asked_for_brings_the_rest_where_a_request_waits(
    drowsy: SteppedCore, memory: Memory
) -> None:
    fall_asleep(drowsy)
    memory.gate.clear()
    call(drowsy, "wake_up", ["weights"])
    drowsy.add("r", max_tokens=3)
    drowsy.core.step()
    memory.gate.set()
    wait_for_memory(drowsy)
    drowsy.run()
    assert drowsy.tokens("r") == [4, 5, 6]


# ---- the parts by themselves


def test_parts_before_the_one_that_fails_are_awake() -> None:
    done = threading.Event()

    class Failing(Memory):
        def take_again(self, tag: str) -> None:
            if tag == "kv_cache":
                raise MemoryError("short")

    parts = SleepingParts(Failing(), done.set)
    parts.give_back(2)
    parts.take_again(("kv_cache", "weights"))
    assert parts.is_waking and done.wait(PATIENCE)
    with pytest.raises(MemoryError, match="short"):
        parts.end_waking()
    assert (parts.asleep, parts.is_waking) == ({"kv_cache"}, False)
