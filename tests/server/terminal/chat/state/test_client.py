"""What the terminal sends, keeps and sends again, and what it makes of the frames that come."""

from collections.abc import Callable
from typing import Any

from server.terminal.chat.state.client import Ask, ChatClient
from tests.server.terminal.chat.state.frames import (
    SESSION,
    Frame,
    answer,
    created,
    delta,
    done,
    message_event,
    question,
    subscribed,
)


class Desk:
    """A client, what it has sent, and what it has told."""

    def __init__(self, session_id: str | None = None) -> None:
        self.sent: list[Frame] = []
        self.notes: list[str] = []
        self.refused: list[Ask] = []
        self.refetched: list[str] = []
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.client = ChatClient(
            self.sent.append,
            session_id=session_id,
            later=lambda seconds, act: self.due.append((seconds, act)),
            refetch=self.refetched.append,
            on_change=lambda: None,
            on_note=self.notes.append,
            on_refused=lambda ask, _: self.refused.append(ask),
        )
        self.client.connected()

    def take(self) -> list[Frame]:
        taken, self.sent[:] = list(self.sent), []
        return taken

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.take()]

    def receive(self, *frames: Frame) -> None:
        for frame in frames:
            self.client.receive(frame)


def refusal(event_id: str, code: str, **more: Any) -> Frame:
    return {"type": "error", "error": {"code": code, "message": "m", "event_id": event_id, **more}}


def in_session() -> Desk:
    desk = Desk(SESSION)
    desk.receive(subscribed(4))
    desk.take()
    return desk


def answering() -> tuple[Desk, Ask]:
    """A question was asked, and an answer has begun."""
    desk = in_session()
    ask = desk.client.ask("How?")
    desk.receive(message_event(5, question()), message_event(6, answer()))
    desk.receive(created(idempotency_key=ask.key), delta(2, 0, "So"))
    desk.take()
    return desk, ask


def test_the_first_question_makes_the_session_and_is_asked_in_it() -> None:
    desk = Desk()
    assert desk.take() == []
    ask = desk.client.ask("How?")
    (create,) = desk.take()
    assert create["type"] == "session.create"
    session = {"id": SESSION}
    made = {"type": "session.created", "session": session, "epoch": "E", "offset": 1}
    desk.receive({**made, "event_id": create["event_id"], "replayed": False})
    (asked,) = desk.take()
    assert (asked["session_id"], asked["idempotency_key"]) == (SESSION, ask.key)
    assert asked["input"] == "How?"


def test_a_lost_session_create_is_sent_again_with_its_key() -> None:
    desk = Desk()
    desk.client.ask("How?")
    (first,) = desk.take()
    desk.client.lost()
    desk.client.connected()
    assert desk.take() == [first]


def test_a_new_connection_resumes_at_the_entries_held_and_sends_what_has_no_answer() -> None:
    desk, _ = answering()
    desk.client.enqueue("And then?")
    (queued,) = desk.take()
    desk.client.lost()
    desk.client.connected()
    subscribe, again = desk.take()
    assert subscribe["after"] == {"epoch": "E", "offset": 6}
    position = {"response_id": "resp_R", "fence": 1, "after_sequence_number": 2}
    assert subscribe["responses"] == [position]
    assert again == queued


def test_a_question_that_has_its_response_is_not_asked_again() -> None:
    desk, _ = answering()
    desk.client.connected()
    assert desk.types() == ["session.subscribe"]


def test_a_stop_says_what_was_seen_and_is_sent_until_the_end_is_there() -> None:
    desk, _ = answering()
    desk.client.stop()
    (stop,) = desk.take()
    assert (stop["response_id"], stop["seen_sequence_number"]) == ("resp_R", 2)
    cancelling = {"type": "response.cancelling", "response_id": "resp_R", "by": "user"}
    desk.receive({**cancelling, "event_id": stop["event_id"], "durable": True})
    desk.client.connected()
    assert desk.types() == ["session.subscribe", "stop"]
    desk.receive(subscribed(6, recovered=True), done(9, 2, status="cancelled"))
    desk.client.connected()
    assert desk.types() == ["session.subscribe"]


def test_a_question_that_is_stopped_before_it_began_is_followed_by_its_stop() -> None:
    desk = in_session()
    ask = desk.client.ask("How?")
    desk.client.stop()
    stop = desk.take()[-1]
    assert (stop["type"], stop["idempotency_key"]) == ("stop", ask.key)


def test_what_passes_is_asked_again_under_its_key() -> None:
    desk = in_session()
    ask = desk.client.ask("How?")
    (first,) = desk.take()
    desk.receive(refusal(ask.key, "store_unavailable", retry_after_ms=1500))
    ((seconds, act),) = desk.due
    assert seconds == 1.5 and desk.refused == []
    act()
    assert desk.take() == [first]


def test_a_refusal_gives_the_words_back() -> None:
    desk = in_session()
    ask = desk.client.ask("How?")
    desk.receive(refusal(ask.key, "context_length_exceeded"))
    assert desk.refused == [ask] and not desk.client.is_busy


def test_a_question_beside_another_s_answer_waits_in_the_queue() -> None:
    desk = in_session()
    ask = desk.client.ask("How?")
    desk.take()
    desk.receive(refusal(ask.key, "response_in_progress"))
    (queued,) = desk.take()
    assert (queued["type"], queued["input"], queued["session_id"]) == ("queue.add", "How?", SESSION)


def test_words_for_an_answer_that_is_over_wait_in_the_queue() -> None:
    desk, _ = answering()
    desk.client.steer("Shorter")
    (steer,) = desk.take()
    assert steer["previous_response_id"] == "resp_R" and "session_id" not in steer
    desk.receive(refusal(steer["event_id"], "response_not_found"))
    assert desk.types() == ["queue.add"]


def test_a_hole_in_the_session_s_log_is_asked_for() -> None:
    desk = in_session()
    desk.receive(message_event(7, question()))
    (subscribe,) = desk.take()
    assert subscribe["after"]["offset"] == 4
    assert desk.client.path == []


def test_a_long_question_keeps_its_text_though_the_event_leaves_it_out() -> None:
    desk = in_session()
    text = "Long " * 1000
    desk.client.ask(text)
    desk.receive(message_event(5, question("", content_omitted=True, text_length=len(text))))
    assert desk.client.path[0].text == text
    assert desk.refetched == []


def test_the_long_question_of_another_client_is_read_from_the_store() -> None:
    desk = in_session()
    desk.receive(message_event(5, question("", content_omitted=True, text_length=5000)))
    assert desk.refetched == [SESSION]
    desk.client.settle([question("x" * 5000)])
    assert desk.client.path[0].text == "x" * 5000


def test_another_answer_to_the_same_question_takes_the_place_of_the_first() -> None:
    desk = in_session()
    first = answer("Yes", "completed", text_length=3)
    desk.receive(message_event(5, question()), message_event(6, first))
    second = answer(id="msg_3", response_id="resp_S")
    desk.receive(message_event(7, second))
    conversation = desk.client.conversation
    assert conversation is not None
    assert [message.id for message in conversation.path] == ["msg_1", "msg_3"]
    assert conversation.siblings(conversation.path[1]) == ["msg_2", "msg_3"]


def test_a_branch_that_another_client_shows_is_read_anew() -> None:
    desk = in_session()
    updated = {"type": "session.updated", "session_id": SESSION, "offset": 5, "by": "user"}
    desk.receive({**updated, "session": {"id": SESSION, "title": "T", "head": "msg_9"}})
    (subscribe,) = desk.take()
    assert subscribe["type"] == "session.subscribe" and "after" not in subscribe


def test_an_eviction_closes_the_chat_until_somebody_asks_again() -> None:
    desk = in_session()
    evicted = {"type": "session.evicted", "session_id": SESSION, "by": "admin"}
    desk.receive({**evicted, "offset": 5, "reason": "too \x1b[31mloud"})
    assert desk.client.problem == "An administrator closed this chat. It said: too ·[31mloud"
    desk.client.connected()
    assert desk.take() == []
    desk.client.reopen()
    assert desk.types() == ["session.subscribe"]


def test_the_end_of_an_answer_that_a_takeover_finished_without_us_is_settled() -> None:
    desk, _ = answering()
    ended = answer("So it is", "completed", text_length=8)
    desk.client.connected()
    desk.receive(subscribed(9, question(), ended))
    assert not desk.client.is_busy
    assert desk.client.path[1].text == "So it is"
