"""`ChatClient`: all that `parley chat` knows of its session, changed by frames only.

Frames go in through `receive`, out through `send`. Whatever is sent is kept until it is answered
and sent again by every new connection, so that a question is asked exactly once though connections,
workers, the engine and Redis may die. `on_change` tells the screen that something is to be shown.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.terminal.chat.state.conversation import Conversation, Place
from server.terminal.chat.state.run import Frame, Message, Outcome, Run
from server.terminal.chat.state.words import error_text
from server.terminal.text import printable
from sessions.model.records import utf16_length

RETRY_SECONDS = 1.0  # of what is refused without a time to wait
# What a server that is not well says; it may have done what was asked, so the key is said again.
PASSING = frozenset(
    ("store_unavailable", "draining", "engine_unavailable", "rate_limited", "not_subscribed")
)


@dataclass
class Ask:
    """A question on its way: its frame is sent again until `response.created` or a refusal."""

    key: str
    text: str  # "" where a stored question is answered once more
    frame: Frame
    is_stopped: bool = False
    is_waiting: bool = False  # it goes to the queue, or steers; it is no message yet
    response_id: str | None = None


class ChatClient:
    """One session, and what is on its way to it."""

    def __init__(
        self,
        send: Callable[[Frame], None],
        *,
        session_id: str | None = None,
        later: Callable[[float, Callable[[], None]], object],
        refetch: Callable[[str], None],
        on_change: Callable[[], None],
        on_note: Callable[[str], None],
        on_refused: Callable[[Ask, str], None],
    ) -> None:
        """`refetch` reads the stored messages of a session and calls `settle`; `on_refused` gives
        back a question that the server will not have, with the reason in words.
        """
        self.conversation = None if session_id is None else Conversation(session_id)
        self.asks: dict[str, Ask] = {}
        self.degraded: dict[str, str] = {}
        self.ready: Frame | None = None
        self.problem: str | None = None  # why this session cannot be gone on with
        self.is_evicted = False  # an administrator has closed it; whoever asks again opens it
        self._send, self._later, self._refetch = send, later, refetch
        self._on_change, self._on_note, self._on_refused = on_change, on_note, on_refused
        self._session_key = secrets.token_urlsafe(16)
        self._is_creating = False
        self._kept: dict[str, Frame] = {}  # other frames without an answer, by event id
        self._num_connections = 0

    # ---- what the screen asks --------------------------------------------------------------------

    @property
    def path(self) -> list[Message]:
        return self.conversation.path if self.conversation is not None else []

    @property
    def active_run(self) -> Run | None:
        return self.conversation.active_run if self.conversation is not None else None

    @property
    def unsent(self) -> list[Ask]:
        """Questions whose message the server has not shown yet."""
        return [ask for ask in self.asks.values() if ask.text and not ask.is_waiting]

    @property
    def is_busy(self) -> bool:
        """Whether an answer is written, or about to be."""
        return self.active_run is not None or any(not a.is_waiting for a in self.asks.values())

    # ---- commands --------------------------------------------------------------------------------

    def ask(self, text: str = "", **wish: Any) -> Ask:
        """Ask a question, or with `regenerate_of` or `continue_of` for another answer."""
        key = secrets.token_urlsafe(16)
        if text:
            wish["input"] = text
        frame = {"type": "response.create", "event_id": key, "idempotency_key": key, **wish}
        ask = self.asks[key] = Ask(key, text, frame)
        self._bring(ask)
        self._on_change()
        return ask

    def enqueue(self, text: str) -> None:
        """Have it asked after what is written, and after what waits."""
        self._hand(text, {"type": "queue.add"})

    def steer(self, text: str) -> None:
        """End the answer that is written, and go on with these words."""
        run = self.active_run
        assert run is not None
        self._hand(text, {"type": "response.steer", "previous_response_id": run.id})

    def change_queue(self, kind: str, **fields: Any) -> None:
        """`queue.update`, `queue.remove` or `queue.send`."""
        self._keep({"type": kind, "session_id": self._session_id(), **fields})

    def switch_to(self, message_id: str) -> None:
        """Show the branch that goes through this message, for all viewers."""
        self._keep(
            {"type": "session.update", "session_id": self._session_id(), "branch": message_id}
        )

    def update_session(self, **fields: Any) -> None:
        self._keep({"type": "session.update", "session_id": self._session_id(), **fields})

    def consent(self, response_id: str, call_id: str, decision: str) -> None:
        named = {"response_id": response_id, "call_id": call_id}
        self._keep({"type": "tool_call.consent", **named, "decision": decision})

    def stop(self) -> bool:
        """Stop the answer. Nothing is shown beyond what is there now. Returns whether one runs."""
        if (run := self.active_run) is not None:
            if not run.is_stopping:
                run.freeze()
                seen = {"seen_sequence_number": run.last} if run.last else {}
                self._keep({"type": "stop", "response_id": run.id, **seen})
        else:
            asks = [ask for ask in self.asks.values() if not ask.is_waiting]
            if not asks:
                return False
            for ask in asks:
                ask.is_stopped = True
                self._bring(ask)
        self._on_change()
        return True

    # ---- the connection --------------------------------------------------------------------------

    def connected(self) -> None:
        """Take the session up where it was, and send again what has no answer."""
        self._num_connections += 1
        self._is_creating = False
        if self.problem is not None:
            return  # closed by an administrator, or gone: `reopen` asks again
        if self.conversation is not None:
            self._subscribe(self.conversation)
        for ask in self.asks.values():
            self._bring(ask)
        for frame in list(self._kept.values()):
            self._send(frame)

    def reopen(self) -> None:
        """Go on with a session although an administrator has closed it."""
        self.problem, self.is_evicted = None, False
        self.connected()

    def lost(self) -> None:
        """What comes until the next subscription belongs to nobody."""
        if self.conversation is not None:
            self.conversation.is_live = False

    def settle(self, wires: list[Frame]) -> None:
        """The stored messages, for texts that no frame brought."""
        if self.conversation is not None:
            self.conversation.settle(wires)
        self._on_change()

    # ---- frames from the server ------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        self._settle_kept(frame)
        match frame["type"]:
            case "connection.ready":
                self.ready, self.degraded = frame, {}
            case "connection.degraded":
                self.degraded |= {k: v for k, v in frame.items() if k in ("store", "engine")}
            case "connection.restored":
                self.degraded = {k: v for k, v in self.degraded.items() if k not in frame}
            case "session.created" if frame.get("event_id") == self._session_key:
                self._created(frame)
            case "session.subscribed" if self._is_ours(frame):
                self._subscribed(frame)
            case "session.updated" if self._is_ours(frame):
                self._updated(frame)
            case "session.deleted" if self._is_ours(frame):
                self.problem = "This chat was deleted."
            case "session.evicted" if self._is_ours(frame):
                self._evicted(frame)
            case "message.created" | "message.updated" if self._is_ours(frame):
                self._message(frame)
            case "queue.updated" if self._is_ours(frame):
                self._queue(frame)
            case "queue.accepted" | "response.steer.accepted":
                self.asks.pop(frame.get("event_id", ""), None)
            case "response.created":
                self._response_created(frame)
            case "error":
                self._error(frame["error"])
            case kind if kind.startswith("response."):
                self._response(frame)
        self._on_change()

    def _is_ours(self, frame: Frame) -> bool:
        session_id = frame.get("session_id") or frame.get("session", {}).get("id")
        return self.conversation is not None and session_id == self.conversation.id

    def _created(self, frame: Frame) -> None:
        if self.conversation is not None:
            return
        self.conversation = Conversation(frame["session"]["id"])
        self.conversation.subscribed({**frame, "recovered": False})
        if frame["replayed"]:  # something may have happened in it since
            self._subscribe(self.conversation)
        for ask in self.asks.values():
            self._bring(ask)

    def _subscribed(self, frame: Frame) -> None:
        assert self.conversation is not None
        self.conversation.subscribed(frame)
        self._bind_question()
        if any(one.is_incomplete and not one.is_streaming for one in self.path):
            self._refetch(self.conversation.id)

    def _updated(self, frame: Frame) -> None:
        if not self._is_next(frame) or self.conversation is None:
            return
        session = frame["session"]
        self.conversation.title = session.get("title") or ""
        head, last = session.get("head"), self.path[-1].id if self.path else None
        if head is None or head == last or self.conversation.cut_after(head):
            return
        self._subscribe(self.conversation, is_fresh=True)  # another branch is in use

    def _evicted(self, frame: Frame) -> None:
        """What was missed of it is history, and nobody was closed out."""
        assert self.conversation is not None
        is_history = frame["offset"] <= self.conversation.missed_until
        self._is_next(frame)
        if not is_history:
            reason = f" It said: {frame['reason']}" if frame.get("reason") else ""
            self.problem = f"An administrator closed this chat.{printable(reason)}"
            self.is_evicted = True

    def _message(self, frame: Frame) -> None:
        conversation, wire = self.conversation, frame["message"]
        if conversation is None or not self._is_next(frame):
            return
        if frame["type"] == "message.created":
            if not conversation.has_place_for(wire):
                self._subscribe(conversation, is_fresh=True)
                return
            message = conversation.add(wire)
            self._bind_question()
        elif (known := conversation.find(wire["id"])) is None:
            if (run := conversation.runs.get(wire.get("response_id") or "")) is not None:
                run.has_ended = run.is_durable = True  # of a branch that is not shown
            return
        else:
            if wire.get("status") == "in_progress":
                conversation.cut_after(wire["id"])  # an answer goes on: it is the branch in use
            message = self._message_updated(conversation, known, wire)
        if not message.is_streaming and message.is_incomplete:
            self._refetch(conversation.id)

    def _message_updated(self, conversation: Conversation, known: Message, wire: Frame) -> Message:
        """The end of a run comes first; only one that we lost sight of is settled here."""
        run = conversation.runs.get(wire.get("response_id") or "")
        conversation.add(wire)
        if wire.get("status") != "in_progress" and run is not None and not run.is_settled:
            run.has_ended = run.is_durable = True
        if run is None or not run.is_stopping:
            known.frozen_at = None
        return known

    def _queue(self, frame: Frame) -> None:
        assert self.conversation is not None
        queue, held = frame["queue"], self.conversation.queue
        if self._is_next(frame) and queue["revision"] > held["revision"]:
            self.conversation.queue = queue

    def _response_created(self, frame: Frame) -> None:
        response, key = frame["response"], frame["idempotency_key"]
        conversation = self.conversation
        if conversation is None or response["session_id"] != conversation.id:
            return
        run = conversation.run(response["id"], response)
        ask = self.asks.pop(key, None)
        if ask is not None:
            ask.response_id = response["id"]
        if run is not None:
            self._outcome(run, run.receive(frame))
            if ask is not None and ask.is_stopped:
                run.freeze()

    def _response(self, frame: Frame) -> None:
        if self.conversation is None:
            return
        response_id = frame.get("response_id") or frame.get("response", {}).get("id")
        run = self.conversation.run(response_id) if response_id else None
        if run is not None:
            self._outcome(run, run.receive(frame))

    def _outcome(self, run: Run, outcome: Outcome) -> None:
        if outcome is Outcome.RESUME:
            self._send({"type": "response.resume", **run.position()})
        elif outcome is Outcome.REFETCH and self.conversation is not None:
            self._refetch(self.conversation.id)

    # ---- refusals --------------------------------------------------------------------------------

    def _error(self, error: Frame) -> None:
        event_id = error.get("event_id") or ""
        code = error["code"]
        if event_id == self._session_key:
            self._is_creating = False
            self._not_created(error)
        elif self.conversation is not None and event_id == f"subscribe:{self.conversation.id}":
            self._not_subscribed(error)
        elif (ask := self.asks.get(event_id)) is not None:
            self._not_asked(ask, error)
        elif (frame := self._kept.get(event_id)) is not None:
            if code in PASSING:
                self._again(error, lambda: event_id in self._kept, lambda: self._send(frame))
                return
            del self._kept[event_id]
            if code not in ("response_not_found", "item_not_found"):  # over already
                self._on_note(error_text(error))
        elif not event_id:
            self._on_note(error_text(error))

    def _not_created(self, error: Frame) -> None:
        if error["code"] in PASSING:
            self._again(error, lambda: self.conversation is None, self._create)
            return
        asks, self.asks = list(self.asks.values()), {}
        for ask in asks:
            self._on_refused(ask, error_text(error))

    def _not_subscribed(self, error: Frame) -> None:
        conversation = self.conversation
        assert conversation is not None
        if error["code"] in PASSING:
            self._again(
                error, lambda: not conversation.is_live, lambda: self._subscribe(conversation)
            )
            return
        self.problem = error_text(error)

    def _not_asked(self, ask: Ask, error: Frame) -> None:
        if error["code"] in PASSING:
            self._again(error, lambda: ask.key in self.asks, lambda: self._bring(ask))
            return
        del self.asks[ask.key]
        over = error["code"] == "response_not_found" and ask.frame["type"] == "response.steer"
        if over or (error["code"] == "response_in_progress" and ask.text):
            self.enqueue(ask.text)  # the answer to be steered is long over, or another one runs
            return
        self._on_refused(ask, error_text(error))

    def _again(self, error: Frame, is_due: Callable[[], bool], act: Callable[[], None]) -> None:
        """Not now: it is said again under its key, unless a new connection does so before."""
        connection = self._num_connections

        def try_again() -> None:
            if connection == self._num_connections and is_due():
                act()

        self._later(error.get("retry_after_ms", 1000 * RETRY_SECONDS) / 1000, try_again)

    # ---- what is sent ----------------------------------------------------------------------------

    def _session_id(self) -> str:
        assert self.conversation is not None
        return self.conversation.id

    def _create(self) -> None:
        if not self._is_creating:
            self._is_creating = True
            key = self._session_key
            self._send({"type": "session.create", "event_id": key, "idempotency_key": key})

    def _subscribe(self, conversation: Conversation, *, is_fresh: bool = False) -> None:
        frame = conversation.subscribe_frame(is_fresh=is_fresh)
        self._send({**frame, "event_id": f"subscribe:{conversation.id}"})

    def _bring(self, ask: Ask) -> None:
        """Send a question; what was stopped before it began is followed by its stop."""
        if self.conversation is None:
            self._create()
            return
        session = {"session_id": self.conversation.id}
        named = {} if ask.frame["type"] == "response.steer" else session
        self._send({**ask.frame, **named})
        if ask.is_stopped:
            self._send({"type": "stop", **session, "idempotency_key": ask.key})

    def _hand(self, text: str, frame: Frame) -> None:
        key = secrets.token_urlsafe(16)
        named = {"event_id": key, "idempotency_key": key, "input": text}
        ask = self.asks[key] = Ask(key, text, {**frame, **named}, is_waiting=True)
        self._bring(ask)
        self._on_change()

    def _keep(self, frame: Frame) -> None:
        event_id = secrets.token_urlsafe(16)
        self._kept[event_id] = {**frame, "event_id": event_id}
        self._send(self._kept[event_id])

    def _settle_kept(self, frame: Frame) -> None:
        """Forget what this frame answers. A stop is answered by the end alone: the worker that has
        confirmed it may die before that is stored.
        """
        if frame["type"] == "response.done":
            ended = frame["response"]["id"]
            over = [key for key, kept in self._kept.items() if kept.get("response_id") == ended]
            for key in over:
                del self._kept[key]
        elif frame["type"] not in ("error", "response.cancelling"):
            self._kept.pop(frame.get("event_id") or "", None)

    # ---- helpers ---------------------------------------------------------------------------------

    def _is_next(self, frame: Frame) -> bool:
        """Whether an event is the next of its log; after a hole, what is missing is asked for."""
        if self.conversation is None:
            return False
        place = self.conversation.place(frame)
        if place is Place.GAP:
            self._subscribe(self.conversation)
        return place is Place.NEXT

    def _bind_question(self) -> None:
        """A long question comes without its text, which we have."""
        for message in self.path[-2:]:
            if message.role != "user" or not message.is_incomplete:
                continue
            for ask in self.asks.values():
                if ask.text and utf16_length(ask.text) == message.text_length:
                    message.text = ask.text
