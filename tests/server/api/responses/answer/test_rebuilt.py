"""However an answer came, and wherever it is read again, its events are the same ones."""

import random
from dataclasses import replace
from typing import Any

import pytest

from server.api.responses.answer.answer_events import AnswerEvents
from server.api.responses.answer.emitter import AnswerEvent
from server.api.responses.answer.rebuilt import entries_of, rebuilt
from server.live.response_log import MAX_STRETCHES
from server.runs.run import Run
from server.runs.state import STATUS_TO_MESSAGE_STATUS, End
from server.runs.stop import Stop
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.records import Message
from tests.server.api.responses.answer.test_answer_events import ASKED, MESSAGE, RESPONSE, read

OBJECT = {
    "id": RESPONSE,
    "session_id": "ses_" + RESPONSE[5:27],
    "message_id": MESSAGE,
    "parent_id": MESSAGE,
    "model": "m",
    "settings": {"seed": 1},
    "status": "queued",
    "created_at": 1,
}
LABELS = {"sky__rain": "sky"}
WORDS = ["H", "ello", " wor", "ld, ", "日本", "\n\n", "  ", "😀", "a" * 20, ".", '"x": [1]']


def new_run() -> Run:
    message = Message(MESSAGE, None, "assistant", "", "in_progress", 1)
    created = ObjectEvent({"type": "response.created", "response": OBJECT})
    return Run(OBJECT, message, uid="alice", fence=1, created=created)


def say(run: Run, chance: random.Random, kind: str) -> None:
    """Something of that kind, in one entry or several."""
    for _ in range(chance.randrange(1, 4)):
        text = "".join(chance.choices(WORDS, k=chance.randrange(1, 8)))
        if kind == "t":
            run.add_text(text, [1])
        else:
            run.add_reasoning(text, [1])


def call(run: Run, chance: random.Random, *, is_cut: bool = False) -> None:
    run.add_call_entries([run.calls.begin(chance.choice(["sky__rain", "mine"]))])
    place = len(run.calls.calls) - 1
    for _ in range(chance.randrange(3)):
        run.add_call_entries([run.calls.add(place, '{"city": "Brno"}'[: chance.randrange(1, 17)])])
    if not is_cut:
        run.add_call_entries(run.calls.end(place, is_valid=chance.random() < 0.8))


def carry_out(run: Run, chance: random.Random) -> None:
    """Of the calls that are the server's some, in any order; some are over."""
    ours = [each for each in run.calls.calls if each.name in LABELS and each.status == "completed"]
    chance.shuffle(ours)
    for each in ours:
        if chance.random() < 0.9:
            begun = run.calls.output(each, server_label="sky", status="in_progress")
            run.add_call_entries([begun])
    for each in ours:
        if each.call_id in run.calls.outputs and chance.random() < 0.8:
            status = chance.choice(["completed", "failed", "denied", "cancelled"])
            over = run.calls.output(each, server_label="sky", status=status, output=f"it {status}")
            run.add_call_entries([over])


def answered(chance: random.Random, kinds: str) -> tuple[Run, Message]:
    """An answer of these kinds in this order, and the message that is stored of it."""
    run = new_run()
    for place, kind in enumerate(kinds):
        if kind == "c":
            call(run, chance, is_cut=place == len(kinds) - 1 and chance.random() < 0.3)
        else:
            say(run, chance, kind)
    carry_out(run, chance)
    ends = [("stop", None), ("length", None), ("repetition", None), ("abort", None)]
    if (ending := chance.choice([*ends, None])) is None:
        run.stop(Stop("user", chance.choice(["client_cancelled", "steered"])))
        end = run.end("abort", None, "released")
    else:
        end = run.end(*ending, "released")
    message = stored(run, end)
    run.events.append(ObjectEvent(run.done_entry(end, message.text_length).wire()))
    return run, message


def stored(run: Run, end: End) -> Message:
    run.timeline.done = run.timeline.created
    run.timeline.at["done_at"] = 5000
    return replace(
        run.message,
        text=run.final_text(),
        reasoning=run.final_reasoning(),
        tool_calls=run.final_calls(),
        tool_outputs=run.final_outputs(),
        order=run.final_order(),
        status=STATUS_TO_MESSAGE_STATUS[end.status],
        usage=run.message_usage(),
        timings=run.timeline.wire(0),
        status_details=end.details(),
    )


def heard(entries: list[Event]) -> list[AnswerEvent]:
    answer = AnswerEvents(ASKED, MESSAGE, LABELS.get)
    return [*answer.begin(), *(event for entry in entries for event in answer.take(entry))]


def cut_otherwise(entries: list[Event], chance: random.Random) -> list[Event]:
    """The same text in other entries: split, or merged with what comes before."""
    found: list[Event] = []
    for entry in entries:
        last = found[-1] if found else None
        if not isinstance(entry, TextEvent):
            found.append(entry)
        elif isinstance(last, TextEvent) and chance.random() < 0.5:
            found[-1] = TextEvent(0, last.delta + entry.delta)
        else:
            place = chance.randrange(len(entry.delta) + 1)
            parts = [entry.delta[:place], entry.delta[place:]]
            found += [TextEvent(0, part) for part in parts if part]
    return found


def random_kinds(chance: random.Random) -> str:
    usual = ["", "t", "rt", "rtc", "rtcc", "cc", "tccc", "r"]
    other = "".join(chance.choices("rtc", k=chance.randrange(8)))
    many = "".join(chance.choices("rtc", k=2 * MAX_STRETCHES))
    return chance.choice([*usual, other, other, many])


@pytest.mark.parametrize("seed", range(120))
def test_an_answer_has_the_same_events_from_its_log_in_other_cuts_and_from_its_message(
    seed: int,
) -> None:
    chance = random.Random(seed)
    run, message = answered(chance, random_kinds(chance))
    whole = heard(run.events)
    read(whole)
    assert whole[-1].type in ("response.completed", "response.incomplete", "response.failed")
    for _ in range(3):
        assert heard(cut_otherwise(run.events, chance)) == whole
    again = Message.from_wire(message.wire())
    answer, events = rebuilt(ASKED, again, LABELS.get)
    assert events == whole
    response = read(events)[-1]["response"]
    assert answer.response() == response
    texts = [
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]
    assert "".join(texts) == message.text


@pytest.mark.parametrize("seed", range(20))
def test_what_follows_a_number_is_the_end_of_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    run, message = answered(chance, random_kinds(chance))
    whole = heard(run.events)
    after = chance.randrange(len(whole))
    known = whole[: after + 1]
    for events in (
        heard(cut_otherwise(run.events, chance)),
        rebuilt(ASKED, message, LABELS.get)[1],
    ):
        rest = [event for event in events if event.sequence_number > after]
        assert [*known, *rest] == whole


def test_an_order_is_kept_only_where_it_is_unusual_and_in_few_bytes() -> None:
    chance = random.Random(1)
    for kinds in ("", "t", "rt", "rtcc", "tc"):
        assert answered(chance, kinds)[1].order is None
    _, message = answered(chance, "trtct")
    assert message.order is not None
    assert [kind for kind in message.order if kind.isalpha()] == list("trtct")
    _, long = answered(chance, "trc" * 400)
    assert len(long.order or "") <= 10 * MAX_STRETCHES


def test_the_entries_of_a_message_say_all_of_it() -> None:
    _, message = answered(random.Random(3), "trtctc")
    entries = list(entries_of(message))
    assert "".join(it.delta for it in entries if isinstance(it, TextEvent)) == message.text
    begun: list[Any] = [
        it.data["item"]["call_id"]
        for it in entries
        if isinstance(it, ObjectEvent) and it.data["type"] == "response.output_item.added"
    ]
    assert begun == [call["call_id"] for call in message.tool_calls or ()]
