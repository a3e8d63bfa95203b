"""`Producer`: from the engine's outputs to what is shown and stored."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.client.parsing.formats import grammar_of
from engine.errors import EngineDeadError
from engine.outputs import OutputError, RequestProgress, TokenCounts
from server.engines.client import CANNOT_CONTINUE, ValidationError
from server.generation.prompts import Prompt, PromptBuilder
from server.protocol.errors import ApiError
from server.runs import producer as producer_module
from server.runs.stop import Stop
from sessions.model.errors import StoreUnavailable
from sessions.model.records import Message
from sessions.store.appends.append import Append
from tests.server.helpers.answering import MAX_SECONDS, SETTINGS, Answering, Engine, output
from tests.server.helpers.appends import Answered, Outcome, intercept

THINKING = grammar_of("'</think>'")


async def test_an_answer_is_shown_stored_and_ended_once(answering: Answering) -> None:
    answering.engine.say(
        output(answering.rid, "one "),
        output(answering.rid, "two "),
        output(answering.rid, "", "stop"),
    )
    await answering.start()
    frames = await answering.viewer.sent()
    done = [frame for frame in frames if frame["type"] == "response.done"]
    assert [frame["response"]["status"] for frame in done] == ["completed"]
    assert done[0]["durable"] is True
    texts, message = await answering.stored()
    assert "".join(texts) == message == "one two "
    record = await answering.store.runs.get("alice", answering.rid)
    assert (record.status, record.num_tokens) == ("completed", 2)


async def test_the_first_token_counts_for_the_model_of_the_answer(answering: Answering) -> None:
    answering.engine.say(output(answering.rid, "one "), output(answering.rid, "two "))
    answering.engine.say(output(answering.rid, "", "stop"))
    await answering.start()
    count = b'parley_model_time_to_first_token_seconds_count{model="village"} 1.0'
    assert count in answering.metrics.render()


async def test_the_engine_hears_of_which_session_an_answer_is(answering: Answering) -> None:
    answering.engine.say(output(answering.rid, "one", "stop"))
    await answering.start()
    assert answering.engine.sessions == [answering.chat.session_id]


@pytest.mark.parametrize(
    ("place", "known"), [("native-2 village", "native-2"), ("native-2 town", None), (None, None)]
)
async def test_where_an_answer_is_written_is_kept_with_its_session(
    answering: Answering, place: str | None, known: str | None
) -> None:
    places: dict[str, str] = {}
    engine: Any = answering.engine
    engine.know_place = places.__setitem__
    engine.place_of = {answering.chat.session_id: "native-3"}.get
    answering.run.place = place
    answering.engine.say(output(answering.rid, "one", "stop"))
    await answering.start()
    assert places.get(answering.chat.session_id) == known
    assert (await answering.chat.begin()).place == "native-3 village"


async def test_a_stop_keeps_what_was_shown_and_discards_what_comes(answering: Answering) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "kept "))
    await answering.text_comes()
    answering.run.stop(Stop())
    answering.engine.say(output(answering.rid, "late "), output(answering.rid, "", "abort"))
    await producing
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert (done["response"]["status"], done["response"]["text_length"]) == ("cancelled", 5)
    assert await answering.stored() == (["kept "], "kept ")


async def test_thoughts_are_shown_and_stored_apart_from_the_text(answering: Answering) -> None:
    answering.engine.grammar = THINKING
    for text in ("<think>\nHm", ", so.\n</th", "ink>\n\nYes", "."):
        answering.engine.say(output(answering.rid, text))
    answering.engine.say(output(answering.rid, "", "stop"))
    await answering.start()
    frames = await answering.viewer.sent()
    assert _joined(frames, "reasoning_text") == "Hm, so."
    assert _joined(frames, "output_text") == "Yes."
    numbers = [frame["sequence_number"] for frame in frames if "sequence_number" in frame]
    assert numbers == sorted(set(numbers))
    message = await answering.store.messages.get(
        "alice", answering.chat.session_id, answering.run.message.id
    )
    assert (message.reasoning, message.text) == ("Hm, so.", "Yes.")
    record = await answering.store.runs.get("alice", answering.rid)
    assert (record.num_tokens, record.text_length) == (4, 4)


async def test_an_answer_in_a_form_has_no_thoughts(answering: Answering) -> None:
    answering.engine.grammar = THINKING
    answering.run.response["settings"] = SETTINGS | {"output": {"type": "json"}}
    said = '{"mark": "<think>no</think>"}'
    answering.engine.say(output(answering.rid, said), output(answering.rid, "", "stop"))
    await answering.start()
    message = await answering.store.messages.get(
        "alice", answering.chat.session_id, answering.run.message.id
    )
    assert (message.reasoning, message.text) == (None, said)


async def test_a_stop_in_a_thought_keeps_what_was_shown_of_it(answering: Answering) -> None:
    answering.engine.grammar = THINKING
    producing = answering.start()
    answering.engine.say(output(answering.rid, "<think>Hm"))
    while (await answering.viewer.next())["type"] != "response.reasoning_text.delta":
        pass
    answering.run.stop(Stop())
    answering.engine.say(output(answering.rid, " late </think> Yes"))
    answering.engine.say(output(answering.rid, "", "abort"))
    await producing
    message = await answering.store.messages.get(
        "alice", answering.chat.session_id, answering.run.message.id
    )
    assert (message.reasoning, message.text, message.status) == ("Hm", "", "interrupted")


@pytest.mark.parametrize("num_known", [0, 1, 2])
async def test_another_worker_goes_on_in_the_middle_of_a_thought(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, num_known: int
) -> None:
    answering.engine.grammar = THINKING
    run = answering.run
    run.add_reasoning("Hm", [1])
    if num_known:
        run.add_reasoning(", so.", [2])
    if num_known > 1:
        run.add_text("Y", [3])
    said = ["<think>Hm", ", so.</think>Y", "es"]
    run.token_ids = [1, 2, 3]
    monkeypatch.setattr(answering.engine, "resumed_text", lambda *_: "".join(said))
    answering.engine.say(output(answering.rid, "!"), output(answering.rid, "", "stop"))
    await answering.start()
    frames = [await answering.viewer.next()]
    while frames[-1]["type"] != "response.done":  # what the first worker had said is read for it
        frames.append(await answering.viewer.next())
    message = await answering.store.messages.get("alice", answering.chat.session_id, run.message.id)
    assert (message.reasoning, message.text) == ("Hm, so.", "Yes!")
    assert run.log.text() == "Yes!" and run.log.reasoning() == "Hm, so."
    assert _joined(frames, "output_text").endswith("es!")


async def test_an_answer_of_an_older_version_goes_on_with_its_thoughts_as_text(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.engine.grammar = THINKING
    answering.run.add_text("<think>Hm", [1])
    monkeypatch.setattr(answering.engine, "resumed_text", lambda *_: "<think>Hm")
    answering.engine.say(output(answering.rid, "</think>Yes"), output(answering.rid, "", "stop"))
    await answering.start()
    message = await answering.store.messages.get(
        "alice", answering.chat.session_id, answering.run.message.id
    )
    assert (message.reasoning, message.text) == (None, "<think>Hm</think>Yes")
    assert message.status == "completed"


async def test_tokens_that_think_something_else_are_not_gone_on_with(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.engine.grammar = THINKING
    answering.run.add_reasoning("Hm", [1])
    monkeypatch.setattr(answering.engine, "resumed_text", lambda *_: "<think>Well")
    await answering.start()
    record = await answering.store.runs.get("alice", answering.rid)
    assert (record.status, record.reason) == ("incomplete", "owner_lost")


def _joined(frames: list[dict[str, Any]], kind: str) -> str:
    deltas = [frame for frame in frames if frame["type"] == f"response.{kind}.delta"]
    text = ""
    for frame in deltas:
        assert frame["text_offset"] in (len(text), frame["text_offset"] if not text else -1)
        text += frame["delta"]
    return text


async def test_what_comes_soon_after_a_text_shares_an_event_and_the_last_does_not_wait(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "FLUSH_SECONDS", 1_000.0)
    answering.engine.say(*(output(answering.rid, text) for text in ("one ", "two ", "three ")))
    answering.engine.say(output(answering.rid, "", "stop"))
    await answering.start()
    assert await answering.stored() == (["one ", "two three "], "one two three ")


async def test_what_has_waited_for_more_is_shown_when_its_time_is_over(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "FLUSH_SECONDS", 0.001)
    producing = answering.start()
    for text in ("one ", "two "):  # the second may come within that time
        answering.engine.say(output(answering.rid, text))
        await answering.text_comes()
    answering.engine.say(output(answering.rid, "", "stop"))
    await producing
    assert await answering.stored() == (["one ", "two "], "one two ")


@pytest.mark.row("P17")
async def test_an_answer_that_takes_too_long_ends_with_what_it_has(
    answering: Answering,
) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "in time, "))
    await answering.text_comes()
    scheduled = answering.run.timeline.scheduled
    assert scheduled is not None
    answering.run.timeline.scheduled = scheduled - MAX_SECONDS
    answering.engine.say(output(answering.rid, "the last "))  # the producer aborts then
    await producing
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status"] == "incomplete"
    assert done["response"]["status_details"] == {"reason": "deadline", "by": "policy"}
    assert (await answering.stored())[1] == "in time, the last "


async def test_an_answer_stopped_before_it_began_never_reaches_the_engine(
    answering: Answering,
) -> None:
    answering.run.stop(Stop())
    await answering.start()
    assert answering.engine.prompts == []
    assert (await answering.stored())[1] == ""


async def test_a_dead_engine_ends_the_answer_with_what_there_is(answering: Answering) -> None:
    answering.engine.say(output(answering.rid, "half "), EngineDeadError())
    await answering.start()
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status"] == "failed"
    assert done["response"]["status_details"]["reason"] == "engine_error"
    assert (await answering.stored())[1] == "half "


@pytest.mark.parametrize("ends", [False, True])
async def test_an_append_whose_reply_was_lost_is_stored_once(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    lost, again = asyncio.Event(), asyncio.Event()

    def lose_the_first_reply(append: Append, outcome: Outcome, answered: Answered) -> None:
        if not lost.is_set() and append.entries:
            lost.set()
            answered(StoreUnavailable())
        else:
            again.set()
            answered(outcome)

    intercept(monkeypatch, answering.store.appends, lose_the_first_reply)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "one "))
    await lost.wait()
    answering.engine.say(output(answering.rid, "two "))
    if not ends:
        await again.wait()
    answering.engine.say(output(answering.rid, "", "stop"))
    await producing
    assert answering.run.status == "completed"
    assert await answering.stored() == (["one ", "two "], "one two ")
    record = await answering.store.runs.get("alice", answering.rid)
    assert (record.num_tokens, record.text_length) == (2, 8)


async def test_queue_positions_are_sent_at_most_twice_a_second(answering: Answering) -> None:
    progress = SimpleNamespace(
        scheduled=False, num_cached_tokens=0, num_tokens_ahead=70, is_waking=False
    )
    for position in range(10):
        progress.queue_position = position
        answering.producer._on_progress(cast("Any", progress))
    queued = [f for f in await answering.viewer.sent() if f["type"] == "response.queued"]
    assert [frame["position"] for frame in queued] == [0]
    assert queued[0]["ahead_tokens"] == 70
    assert "eta_ms" not in queued[0]  # nothing is known of this queue yet


async def test_an_answer_that_wakes_the_engine_says_what_it_waits_for(
    answering: Answering,
) -> None:
    progress = RequestProgress(0, 5, 0, 0, False, is_waking=True)
    answering.producer._on_progress(progress)
    (queued,) = [f for f in await answering.viewer.sent() if f["type"] == "response.queued"]
    assert (queued["reason"], queued["position"]) == ("engine_waking", 0)
    assert "eta_ms" not in queued and "ahead_tokens" not in queued


async def test_an_answer_whose_turn_comes_while_the_core_restarts_waits(
    answering: Answering,
) -> None:
    answering.engine.ready.clear()
    producing = answering.start()
    await asyncio.sleep(0)
    answering.engine.say(output(answering.rid, "late "), output(answering.rid, "", "stop"))
    answering.engine.ready.set()
    await producing
    assert (await answering.stored())[1] == "late "
    assert answering.run.status == "completed"


class SeveralEngines(Engine):
    """As one."""

    def __init__(self) -> None:
        super().__init__()
        self.place: str | None = None

    def place_of(self, session_id: str) -> str | None:
        return self.place

    def know_place(self, session_id: str, name: str) -> None:
        self.place = name


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_an_answer_that_begins_later_goes_where_the_one_before_it_has_been_meanwhile(
    answering: Answering, *, is_taken_over: bool
) -> None:
    engine = answering.engine = answering.producer._engine = SeveralEngines()
    answering.run.place = None if is_taken_over else "a village"
    answering.run.fence = 2 if is_taken_over else 1
    session = answering.store.keys.session(answering.chat.session_id, "m")
    await answering.store.client.call("HSET", session, "place", "b village")
    answering.run.promoted.set()
    engine.say(output(answering.rid, "", "stop"))
    await answering.producer.produce(queued_behind=0 if is_taken_over else 1)
    assert engine.place == "b"


async def test_an_answer_that_waits_for_the_core_can_be_stopped(answering: Answering) -> None:
    answering.engine.ready.clear()
    producing = answering.start()
    await asyncio.sleep(0)
    answering.run.stop(Stop())
    await producing
    assert answering.run.status == "cancelled"
    assert answering.engine.prompts == []


async def test_an_answer_does_not_wait_for_the_core_for_ever(answering: Answering) -> None:
    answering.producer.waiting._engine_seconds = 0.01
    answering.engine.ready.clear()
    await answering.start()
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status_details"] == {"reason": "engine_error"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("tools_not_supported", "tools_not_supported"),
        ("thinking_not_supported", "thinking_not_supported"),
        ("output_format_refused", "output_format_refused"),
        ("context_length_exceeded", "engine_error"),
    ],
)
async def test_what_is_found_of_a_model_that_was_loaded_late_ends_the_answer_by_name(
    answering: Answering, code: str, reason: str
) -> None:
    class Refusing:
        async def build(self, *_: object) -> Prompt:
            raise ApiError(code, "it is so")

    answering.run.prompt = None
    answering.run.user_message = Message("msg_q", None, "user", "Hi", "completed", 0)
    answering.producer._prompts = cast("PromptBuilder", Refusing())
    await answering.start()
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status_details"] == {"reason": reason, "message": "it is so"}


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (CANNOT_CONTINUE, ("incomplete", "engine_lost", None)),
        ("content_filter", ("incomplete", "content_filter", None)),
        ("invalid_request", ("failed", "engine_error", "why")),
        ("engine_error", ("failed", "engine_error", None)),
    ],
)
async def test_an_answer_ends_as_its_engine_says(
    answering: Answering, code: str, end: tuple[str, str, str | None]
) -> None:
    last = output(answering.rid, "", "error")
    last.error = OutputError(code, "why")
    answering.engine.say(output(answering.rid, "one "), last)
    await answering.start()
    done = [f for f in await answering.viewer.sent() if f["type"] == "response.done"]
    details = done[0]["response"]["status_details"]
    said = (done[0]["response"]["status"], details["reason"], details.get("message"))
    assert said == end
    assert (await answering.stored())[1] == "one "


async def test_what_the_engine_refuses_when_it_is_asked_is_reported(answering: Answering) -> None:
    answering.engine.say(ValidationError("min_p is not done here", "min_p"))
    await answering.start()
    done = [f for f in await answering.viewer.sent() if f["type"] == "response.done"]
    assert done[0]["response"]["status_details"] == {
        "reason": "engine_error",
        "message": "min_p is not done here",
    }


async def test_the_engines_own_figures_count_where_it_has_some(answering: Answering) -> None:
    last = output(answering.rid, "", "stop")
    last.counts = TokenCounts(num_prompt=40, num_cached=16, num_output=7)
    answering.engine.say(output(answering.rid, "one "), last)
    await answering.start()
    done = [f for f in await answering.viewer.sent() if f["type"] == "response.done"]
    usage = {"input_tokens": 40, "cached_tokens": 16, "output_tokens": 7}
    assert done[0]["response"]["usage"] == usage
    message = await answering.store.messages.get(
        "alice", answering.chat.session_id, answering.run.message.id
    )
    assert message.usage == usage
    session = await answering.store.sessions.get("alice", answering.chat.session_id)
    assert (session.input_tokens, session.output_tokens) == (40, 7)


@pytest.mark.parametrize(("exactness", "kept"), [("exact", None), (None, None), ("text", "text")])
async def test_a_message_says_if_it_could_not_go_on_exactly(
    answering: Answering, exactness: str | None, kept: str | None
) -> None:
    if exactness is not None:  # an older version says nothing
        answering.run.response["exactness"] = exactness
    answering.engine.say(output(answering.rid, "one ", "stop"))
    await answering.start()
    message = await answering.store.messages.get(
        "alice", answering.chat.session_id, answering.run.message.id
    )
    assert message.exactness == kept
    assert Message.from_wire(message.wire()).exactness == kept
