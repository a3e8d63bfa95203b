"""What of a session is printed, each line once, and what of it a terminal would obey: nothing."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from server.terminal.chat.state.client import ChatClient
from server.terminal.chat.state.words import REASONS, end_text
from server.terminal.chat.transcript import Transcript
from tests.server.terminal.chat.state.frames import (
    SESSION,
    Frame,
    answer,
    created,
    delta,
    done,
    message_event,
    question,
    snapshot,
    subscribed,
)

HOSTILE = "\x1b]0;owned\x07 \x1b[2J\r\u202e\x9b31m \ud800"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Desk:
    """A session on screen."""

    def __init__(self) -> None:
        def ignore(*_: Any) -> None: ...

        later: Callable[..., None] = ignore
        self.client = ChatClient(
            ignore,
            session_id=SESSION,
            later=later,
            refetch=ignore,
            on_change=ignore,
            on_note=ignore,
            on_refused=ignore,
        )
        self.client.connected()
        self.transcript = Transcript()

    def print(self, *frames: Frame) -> str:
        """What these have printed."""
        printed = ""
        for frame in frames:
            self.client.receive(frame)
            printed += "".join(text for _, text in self.transcript.take(self.client))
        return printed


def asked(*more: Frame) -> tuple[Desk, str]:
    desk = Desk()
    begun = (message_event(5, question()), message_event(6, answer()), created())
    return desk, desk.print(subscribed(4), *begun, *more)


def test_whole_lines_are_printed_once_and_the_last_one_grows_below() -> None:
    desk, printed = asked(delta(2, 0, "One\ntw"), delta(3, 6, "o"))
    assert printed == "\n› How?\nOne\n"
    assert desk.transcript.growing(desk.client) == "two"
    printed = desk.print(delta(4, 7, "\nthree"), done(5, 13))
    assert printed == "two\nthree\n— finished · 3 tokens\n"
    assert desk.transcript.growing(desk.client) == ""
    assert desk.print({"type": "connection.restored"}) == ""


def test_a_snapshot_of_what_is_shown_prints_only_what_is_new() -> None:
    desk, _ = asked(delta(2, 0, "One\ntw"))
    assert desk.print(snapshot(9, "One\ntwo\nthr")) == "two\n"


def test_an_answer_that_ended_while_the_connection_was_away_is_printed_whole() -> None:
    desk, _ = asked(delta(2, 0, "One\ntw"))
    ended = answer("One\ntwo\n", "completed", text_length=8, status_details={"reason": "eos"})
    assert desk.print(subscribed(9, question(), ended)) == "two\n— finished\n"


def test_an_end_that_is_not_stored_is_not_told_yet() -> None:
    desk, _ = asked(delta(2, 0, "One"))
    assert desk.print(done(3, 3, durable=False)) == ""
    assert desk.print(done(3, 3)) == "One\n— finished · 3 tokens\n"


def test_what_another_s_stop_has_cut_is_said() -> None:
    desk, _ = asked(delta(2, 0, "One\ntwo\n"))
    assert "ends earlier, with “One”" in desk.print(done(9, 3, "cancelled"))


def test_a_text_that_became_another_is_printed_anew() -> None:
    desk, _ = asked(delta(2, 0, "One\n"))
    printed = desk.print(snapshot(9, "Two\nthree\n"))
    assert printed == "(The answer as it is stored:)\nTwo\nthree\n"


def test_of_a_long_chat_the_last_turns_are_shown_and_history_shows_the_rest() -> None:
    messages = []
    for number in range(5):
        parent = f"a{number - 1}" if number else None
        messages.append(question(f"Q{number}?", id=f"q{number}", parent_id=parent))
        more = {"id": f"a{number}", "parent_id": f"q{number}", "response_id": f"r{number}"}
        messages.append(answer(f"A{number}", "completed", text_length=2, **more))
    desk = Desk()
    printed = desk.print(subscribed(9, *messages))
    assert printed.startswith("Harbours · 4 earlier messages: /history\n\n› Q2?\nA2\n")
    assert "Q1?" not in printed
    assert desk.print(subscribed(9, *messages)) == ""
    held = "".join(text for _, text in desk.transcript.history(desk.client))
    assert re.findall(r"[QA]\d", held) == [f"{letter}{n}" for n in range(5) for letter in "QA"]


def test_a_snapshot_that_begins_later_than_what_was_printed_prints_nothing_again() -> None:
    desk, _ = asked(delta(2, 0, "One\n"), done(3, 4))
    ended = answer("One\n", "completed", text_length=4)
    desk.print(message_event(7, ended, "message.updated"))
    assert desk.print(subscribed(9, ended)) == ""
    assert desk.print(subscribed(9, question(), ended)) == ""


def test_another_answer_says_which_it_is_and_the_question_is_not_printed_again() -> None:
    desk, _ = asked(delta(2, 0, "One"), done(3, 3))
    second = {"id": "msg_3", "response_id": "resp_S", "text_length": 3}
    printed = desk.print(message_event(7, answer("Two", "completed", **second)))
    assert printed == "‹2/2›\nTwo\n— finished\n"


def test_a_continued_answer_goes_on_from_the_beginning_of_its_last_line() -> None:
    desk, _ = asked(delta(2, 0, "One\nhalf"), done(3, 8, "incomplete"))
    again = answer("", "in_progress", response_id="resp_S")
    printed = desk.print(
        message_event(7, answer("One\nhalf", "interrupted", text_length=8), "message.updated"),
        message_event(8, again, "message.updated"),
        {**created(), "response": {**created()["response"], "id": "resp_S"}},
        {**delta(2, 8, " more\n"), "response_id": "resp_S"},
    )
    assert printed == "half more\n"


def test_a_call_of_a_tool_is_a_line_for_each_change() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "now"}
    output = {"type": "function_call_output", "id": "fco", "call_id": "c", "name": "now"}
    event = {"response_id": "resp_R", "fence": 1}
    _, printed = asked(
        {"type": "response.output_item.added", "sequence_number": 2, **event}
        | {"item": {**call, "arguments": "", "status": "in_progress"}},
        {"type": "response.output_item.done", "sequence_number": 3, **event}
        | {"item": {**call, "arguments": '{"zone": "UTC"}', "status": "completed"}},
        {"type": "response.output_item.added", "sequence_number": 4, **event}
        | {"item": {**output, "status": "awaiting_consent"}},
        {"type": "response.output_item.done", "sequence_number": 5, **event}
        | {"item": {**output, "status": "completed"}},
    )
    assert printed.splitlines()[2:] == [
        '⚙ now {"zone": "UTC"}',
        "⚙ now: waits for your word: /allow, /allow always, or /deny",
        "⚙ now: done",
    ]


@pytest.mark.row("B60")
def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    item = {"type": "function_call", "id": "f", "status": "completed"}
    hostile = {**item, "name": HOSTILE, "arguments": HOSTILE}
    details = {"reason": HOSTILE, "message": HOSTILE}
    session = {"id": SESSION, "title": HOSTILE}
    messages = [
        question(HOSTILE, text_length=len(HOSTILE)),
        answer(HOSTILE, "failed", tool_calls=[hostile], status_details=details, text_length=25),
    ]
    taken = {"session": session, "messages": messages, "has_more": True}
    desk = Desk()
    printed = desk.print(subscribed(9, snapshot=taken))
    printed += "".join(text for _, text in desk.transcript.history(desk.client))
    assert printed.count("]0;owned·") >= 7
    assert not OBEYED.search(printed)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_an_end_is_said_in_words(reason: str) -> None:
    words = end_text("incomplete", reason)
    assert "_" not in words and "eos" not in words


def test_a_reason_that_is_unknown_is_said_by_its_status() -> None:
    assert end_text("incomplete", "brand_new_reason") == "cut short"
