"""A history of one answer that is whole, and the frames to play another that is not."""

from typing import Any

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.connection_check import Connection
from tests.end_to_end.oracle.history import History
from tests.end_to_end.oracle.stored_state import Stored, StoredRun, StoredSession
from tests.helpers.tiny_model import oracle_word

SESSION = "ses_" + "s" * 22
RESPONSE = "resp_" + "s" * 22 + "r" * 11
WORDS = [oracle_word(n) for n in (6, 7, 8, 9)]
TEXT = "".join(WORDS)


def created(**changed: Any) -> Frame:
    response = {"id": RESPONSE, "session_id": SESSION, "message_id": "msg_2", "parent_id": "msg_1"}
    frame = {"type": "response.created", "response": response, "idempotency_key": "k"}
    return {**frame, "replayed": False, "sequence_number": 1, "fence": 1, **changed}


def delta(number: int, **changed: Any) -> Frame:
    frame = {"type": "response.output_text.delta", "response_id": RESPONSE, "fence": 1}
    place = {"sequence_number": number, "text_offset": 7 * (number - 2)}
    return {**frame, **place, "delta": WORDS[number - 2], **changed}


def snapshot(number: int, **changed: Any) -> Frame:
    frame = {"type": "response.output_text.snapshot", "response_id": RESPONSE, "fence": 1}
    text = "".join(WORDS[: number - 1])
    return {**frame, "sequence_number": number, "text": text, "part": 1, "parts": 1, **changed}


def done(number: int = 6, *, status: str = "completed", **changed: Any) -> Frame:
    reason = {"completed": "eos", "cancelled": "client_cancelled"}[status]
    response = {"id": RESPONSE, "session_id": SESSION, "message_id": "msg_2", "status": status}
    details = {"status_details": {"reason": reason}, "text_length": 7 * (number - 2)}
    end = {"response": {**response, **details}, "fence": 1, "durable": True}
    return {"type": "response.done", **end, "sequence_number": number, **changed}


def cancelling(*, durable: bool = True) -> Frame:
    return {"type": "response.cancelling", "response_id": RESPONSE, "durable": durable}


CREATE = {"type": "response.create", "session_id": SESSION, "idempotency_key": "k"}
CREATE |= {"input": oracle_word(5)}
STOP = {"type": "stop", "response_id": RESPONSE}
REQUESTS = ("stop", "response.cancel", "response.create", "response.resume")
WHOLE = [created(), delta(2), delta(3), delta(4), delta(5), done()]
UNSTORED: Frame = {"durable": False}  # of an end that was sent and never stored


def message(name: str, text: str, **changed: Any) -> Frame:
    content = [{"type": "text", "text": text}]
    return {"id": name, "parent_id": None, "status": "completed", "content": content, **changed}


def stored_session(*, status: str = "completed") -> StoredSession:
    run = StoredRun(
        fields={
            "status": status,
            "fence": "1",
            "sequence_number": "6",
            "num_tokens": "4",
            "text_length": "28",
            "message_id": "msg_2",
            "parent_id": "msg_1",
            "lease_until": "0",
            "reason": "client_cancelled" if status == "cancelled" else "eos",
        },
        events=[(1, {"type": "response.created"})]
        + [(n, ["t", 7 * (n - 2), WORDS[n - 2]]) for n in (2, 3, 4, 5)]
        + [(6, {"type": "response.done"})],
        num_token_ids=4,
        expiries={"r": 1000, "e": 1000, "tok": 1000},
    )
    is_cut = status == "cancelled"
    answer = message("msg_2", TEXT, parent_id="msg_1", response_id=RESPONSE)
    answer["status"] = "interrupted" if is_cut else "completed"
    session = StoredSession(
        fields={"uid": "u", "offset": "3", "active_response_id": ""},
        messages={"msg_1": message("msg_1", oracle_word(5)), "msg_2": answer},
        tree=[("msg_1", ""), ("msg_2", "msg_1")],
        log=[(1, {}), (2, {}), (3, {})],
        suffixes={"m": -1},
    )
    session.runs[RESPONSE] = run
    return session


class World:
    """One session with one answer of four words, and a client that saw it."""

    def __init__(self, status: str = "completed") -> None:
        self.session = stored_session(status=status)
        self.stored = Stored(
            10_000, {SESSION: self.session}, set(), {SESSION}, {"u": {SESSION}}, []
        )
        self.history = History(lambda: self.stored)
        self.client = self.history.connect()

    @property
    def run(self) -> StoredRun:
        return self.session.runs[RESPONSE]

    def play(self, *frames: Frame, client: Connection | None = None) -> None:
        for frame in frames:
            to = client or self.client
            is_request = frame["type"] in REQUESTS
            to.sent(frame) if is_request else to.received(frame)

    def finds(self) -> str:
        return "\n".join(self.history.violations())
