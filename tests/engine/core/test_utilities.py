from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from engine.core.io_thread import ClientGone
from engine.core.profiling import Profiler
from engine.ipc import Utility, UtilityReply
from engine.lora import LoRARequest
from tests.engine.helpers.fakes import SteppedCore


class Worker:
    def double(self, number: int, *, plus: int = 0) -> int:
        return 2 * number + plus

    def explode(self) -> None:
        raise KeyError("weights")

    def give_unsendable(self) -> object:
        return object()


@pytest.fixture
def core() -> SteppedCore:
    return SteppedCore(worker=Worker())


def call(core: SteppedCore, name: str, *args: Any, call_id: int = 1) -> None:
    core.core.inbox.put(("me", Utility(call_id, name, list(args))))


def replies(core: SteppedCore) -> list[UtilityReply]:
    return [message for _, message in core.sent if isinstance(message, UtilityReply)]


def ask(core: SteppedCore, name: str, *args: Any) -> Any:
    """The value of a call that is answered at once; RuntimeError for an error."""
    num_replies = len(replies(core))
    call(core, name, *args)
    core.core.step()
    (reply,) = replies(core)[num_replies:]
    if reply.error is not None:
        raise RuntimeError(reply.error)
    return reply.value


# ---- pausing


def test_pause_abort_ends_what_is_here_and_refuses_what_comes(core: SteppedCore) -> None:
    core.add("running", max_tokens=50)
    core.core.step()
    core.add("waiting", max_tokens=50)
    assert ask(core, "pause", "abort", True) is None
    core.add("new", max_tokens=5)
    core.run()
    assert core.end("running").finish_reason == core.end("waiting").finish_reason == "abort"
    assert core.end("new").error == ("paused", "generation is paused")
    assert core.tokens("new") == []
    core.check_all_free()


def test_pause_wait_is_answered_when_what_is_here_has_ended(core: SteppedCore) -> None:
    core.add("old", max_tokens=5)
    core.core.step()
    call(core, "pause", "wait", True)
    core.add("new", max_tokens=5)
    core.core.step()
    assert replies(core) == [] and core.end("new").error is not None
    core.run()
    assert replies(core) == [UtilityReply(1)]
    assert core.sent[-1] == ("me", UtilityReply(1))  # after the last output
    assert len(core.tokens("old")) == 5


def test_pause_keep_stops_everything_where_it_is(core: SteppedCore) -> None:
    core.add("old", max_tokens=6)
    for _ in range(3):
        core.core.step()
    num_tokens = len(core.tokens("old"))
    ask(core, "pause", "keep", False)
    core.add("new", max_tokens=2)
    for _ in range(5):
        assert not core.core.step()
    assert len(core.tokens("old")) == num_tokens and core.tokens("new") == []
    ask(core, "resume")
    core.run()
    assert (core.tokens("old"), core.tokens("new")) == ([4, 5, 6, 7, 8, 9], [4, 5])
    core.check_all_free()


@pytest.mark.parametrize("clear_cache", [True, False])
def test_kept_answers_go_on_with_or_without_their_cache(
    core: SteppedCore, clear_cache: bool
) -> None:
    core.add("r", num_prompt_tokens=9, max_tokens=6)
    for _ in range(3):
        core.core.step()
    ask(core, "pause", "keep", clear_cache)
    ask(core, "resume")
    core.run()
    assert core.tokens("r") == [10, 11, 12, 13, 14, 15]
    assert core.end("r").num_preemptions == clear_cache
    core.check_all_free()


def test_a_kept_request_can_be_aborted(core: SteppedCore) -> None:
    core.add("r", max_tokens=50)
    core.core.step()
    ask(core, "pause", "keep", False)
    core.abort("r")
    core.core.step()
    assert core.end("r").finish_reason == "abort"
    core.check_all_free()


def test_pausing_while_paced_answers_run_leaves_the_loop_asleep() -> None:
    core = SteppedCore(pace=10.0)
    core.add("r", max_tokens=50)
    core.core.step()
    ask(core, "pause", "keep", False)
    timeouts: list[float | None] = []

    class Inbox:
        def get_nowait(self) -> Any:
            raise Empty

        def get(self, timeout: float | None) -> Any:
            timeouts.append(timeout)
            return ("me", Utility(2, "resume", []))

    core.core.inbox = Inbox()  # type: ignore[assignment]
    core.core.wait()
    assert timeouts == [None]


def test_watchdog_leaves_paused_requests_alone(core: SteppedCore) -> None:
    ask(core, "pause", "keep", True)
    core.add("r", max_tokens=2)
    for _ in range(5):
        core.core.step()
        core.time += 100
    assert core.outputs("r") == []
    ask(core, "resume")
    core.run()
    assert core.end("r").finish_reason == "length"


def test_pausing_twice_and_resuming_unpaused_do_nothing(core: SteppedCore) -> None:
    assert ask(core, "is_paused") is False
    ask(core, "resume")
    ask(core, "pause", "keep", True)
    core.add("r", max_tokens=2)
    ask(core, "pause", "abort", True)
    assert core.outputs("r") == []
    assert ask(core, "is_paused") is True
    ask(core, "resume")
    ask(core, "resume")
    assert ask(core, "is_paused") is False
    core.run()
    assert core.end("r").finish_reason == "length"


def test_a_pause_ends_with_the_client_that_asked_for_it(core: SteppedCore) -> None:
    core.core.inbox.put(("other", Utility(1, "pause", ["keep", True])))
    core.add("kept", max_tokens=5)
    core.run()
    assert core.tokens("kept") == []
    core.core.inbox.put(ClientGone("a third"))
    core.run()
    assert core.tokens("kept") == []
    core.core.inbox.put(ClientGone("other"))
    core.run()
    assert len(core.tokens("kept")) == 5


def test_nothing_is_sent_to_a_client_that_left_while_it_waited(core: SteppedCore) -> None:
    core.add("long", max_tokens=5)
    core.core.inbox.put(("other", Utility(1, "drain", [])))
    core.core.step()
    core.core.inbox.put(ClientGone("other"))
    core.run()
    assert len(core.tokens("long")) == 5 and replies(core) == []


def test_resuming_answers_a_pause_that_still_waits(core: SteppedCore) -> None:
    core.add("r", max_tokens=50)
    core.core.step()
    call(core, "pause", "wait", True, call_id=1)
    call(core, "drain", call_id=2)
    call(core, "resume", call_id=3)
    core.core.step()
    assert [reply.call_id for reply in replies(core)] == [1, 3]
    core.run()
    assert [reply.call_id for reply in replies(core)] == [1, 3, 2]


def test_unknown_pause_mode_is_an_error_and_no_pause(core: SteppedCore) -> None:
    with pytest.raises(RuntimeError, match="sideways"):
        ask(core, "pause", "sideways", True)
    assert ask(core, "is_paused") is False


# ---- caches


@pytest.mark.parametrize(
    "clear",
    [
        lambda core: ask(core, "reset_prefix_cache"),
        lambda core: ask(core, "pause", "abort", True) or ask(core, "resume"),
        lambda core: ask(core, "pause", "wait", True) or ask(core, "resume"),
    ],
    ids=["reset", "pause abort", "pause wait"],
)
def test_cleared_cache_has_no_prefix(core: SteppedCore, clear: Callable[..., Any]) -> None:
    for name in ("first", "second"):
        core.add(name, num_prompt_tokens=9, max_tokens=1)
        core.run()
    assert core.end("second").num_cached_tokens == 8
    clear(core)
    core.add("third", num_prompt_tokens=9, max_tokens=1)
    core.run()
    assert core.end("third").num_cached_tokens == 0


def test_pause_without_clearing_keeps_the_prefixes(core: SteppedCore) -> None:
    core.add("first", num_prompt_tokens=9, max_tokens=1)
    core.run()
    ask(core, "pause", "abort", False)
    ask(core, "resume")
    core.add("second", num_prompt_tokens=9, max_tokens=1)
    core.run()
    assert core.end("second").num_cached_tokens == 8


def test_running_answers_survive_a_reset_that_takes_their_blocks(core: SteppedCore) -> None:
    core.add("a", num_prompt_tokens=9, max_tokens=20)
    core.add("b", num_prompt_tokens=5, max_tokens=20)
    for _ in range(4):
        core.core.step()
    assert ask(core, "reset_prefix_cache", True) is True
    core.run()
    assert core.tokens("a") == list(range(10, 30))
    assert core.tokens("b") == list(range(6, 26))
    assert core.end("a").num_preemptions == core.end("b").num_preemptions == 1
    core.check_all_free()


def test_prefixes_stay_while_a_request_runs_unless_it_gives_up_its_blocks(
    core: SteppedCore,
) -> None:
    core.add("first", num_prompt_tokens=9, max_tokens=1)
    core.run()
    core.add("runs", num_prompt_tokens=5, max_tokens=20)
    core.core.step()
    assert ask(core, "reset_prefix_cache") is False
    core.add("second", num_prompt_tokens=9, max_tokens=1)
    core.run()
    assert core.end("second").num_cached_tokens == 8
    assert ask(core, "reset_prefix_cache") is True


# ---- the worker's methods


def test_method_of_the_worker_is_called_by_name(core: SteppedCore) -> None:
    assert ask(core, "collective_rpc", "double", [4], {"plus": 1}) == 9


@pytest.mark.parametrize("name", ["no_such_method", "__init__", "_secret", "__class__"])
def test_unknown_and_private_methods_are_errors(core: SteppedCore, name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        ask(core, "collective_rpc", name, [], {})


@pytest.mark.parametrize("name", ["explode", "give_unsendable"])
def test_method_that_fails_is_an_error_and_the_loop_goes_on(core: SteppedCore, name: str) -> None:
    core.add("r", max_tokens=3)
    with pytest.raises(RuntimeError):
        ask(core, "collective_rpc", name, [], {})
    core.run()
    assert len(core.tokens("r")) == 3


# ---- profiles


def test_profile_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    profiler = Profiler()
    profiler.start(str(tmp_path / "new" / "trace"))
    with pytest.raises(RuntimeError, match="already"):
        profiler.start(str(tmp_path / "trace"))
    path = Path(profiler.stop())
    assert path.parent == tmp_path / "new" and "traceEvents" in path.read_text()
    with pytest.raises(RuntimeError, match="no profile"):
        profiler.stop()


class Adapters:
    """Has those of two numbers, and refuses the third."""

    def add(self, request: LoRARequest, in_use: set[int], is_needed_here: bool) -> str:
        if request.lora_int_id == 3:
            raise ValueError("/3: is a link")
        return f"{request.lora_name} {in_use} {is_needed_here}"

    def remove(self, number: int) -> bool:
        return number == 1

    def pin(self, number: int) -> bool:
        return number == 2

    def numbers(self) -> list[int]:
        return [1, 2]


def test_adapters_are_added_and_what_is_wrong_with_them_is_said() -> None:
    core = SteppedCore(adapters=Adapters())
    for number, expected in ((1, ["one set() True", ""]), (3, ["", "/3: is a link"])):
        fields = {"lora_name": "one", "lora_int_id": number, "lora_path": "/a"}
        assert list(ask(core, "add_lora", fields, True)) == expected
    _, problem = ask(core, "add_lora", {"lora_name": "one"}, True)
    assert "missing required field `lora_int_id`" in problem
    names = ("remove_lora", "pin_lora")
    assert [ask(core, name, number) for name in names for number in (1, 2)] == [1, 0, 0, 1]
    assert ask(core, "list_loras") == [1, 2]


def test_a_core_without_adapters_says_so(core: SteppedCore) -> None:
    fields = {"lora_name": "one", "lora_int_id": 1, "lora_path": "/a"}
    assert ask(core, "add_lora", fields, True)[1] == "the engine was started without enable_lora"
    assert not ask(core, "remove_lora", 1) and not ask(core, "pin_lora", 1)
    assert ask(core, "list_loras") == []
