"""One session as this client follows it: the messages of the branch in use, the answers that write
to them, the queue, and the place in the session's log from which a reconnect goes on.
"""

from enum import Enum

from server.terminal.chat.state.run import Frame, Message, Run, content_text
from sessions.model.records import utf16_length


class Place(Enum):
    """Where an event of the session's log stands."""

    NEXT = "next"
    OLD = "old"
    GAP = "gap"


class Conversation:
    """Frames change it; `path` holds the messages, the oldest first."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.title = ""
        self.path: list[Message] = []
        self.runs: dict[str, Run] = {}
        self.queue: Frame = {"revision": -1, "paused": False, "items": []}
        self.has_more = False  # older messages than those of the path
        self.is_live = False  # subscribed on this connection
        self.is_loaded = False
        self.missed_until = 0  # what comes up to this offset happened before we were there
        self._epoch: str | None = None
        self._offset = 0
        self._children: dict[str | None, list[str]] = {}

    def subscribe_frame(self, *, is_fresh: bool = False) -> Frame:
        """The frame that goes on from what is held; without a position, a snapshot comes."""
        self.is_live = False
        for run in self.runs.values():
            run.is_resuming = False  # the answer covers every open question
        frame: Frame = {"type": "session.subscribe", "session_id": self.id}
        if self._epoch is None or is_fresh:
            return frame
        followed = [run for run in self.runs.values() if not run.is_settled and run.last > 0]
        return {
            **frame,
            "after": {"epoch": self._epoch, "offset": self._offset},
            "responses": [run.position() for run in followed],
        }

    def subscribed(self, frame: Frame) -> None:
        """What was missed follows, or a snapshot replaces what is held."""
        self.is_live = self.is_loaded = True
        self.missed_until = frame["offset"]
        if frame.get("recovered"):
            return
        self.queue = frame.get("queue") or {"revision": -1, "paused": False, "items": []}
        self._epoch, self._offset = frame["epoch"], frame["offset"]
        if (snapshot := frame.get("snapshot")) is not None:
            self._take(snapshot, frame.get("active_responses", []))

    def place(self, frame: Frame) -> Place:
        """Where an event stands; the next one is counted."""
        offset = frame["offset"]
        if not self.is_live or offset <= self._offset:
            return Place.OLD
        if offset != self._offset + 1:
            return Place.GAP
        self._offset = offset
        return Place.NEXT

    def find(self, message_id: str | None) -> Message | None:
        return next((one for one in self.path if one.id == message_id), None)

    def has_place_for(self, wire: Frame) -> bool:
        parent_id = wire.get("parent_id")
        return parent_id is None or self.find(parent_id) is not None

    def add(self, wire: Frame) -> Message:
        """Put a new message after its parent; what followed that belongs to another branch."""
        if (known := self.find(wire["id"])) is not None:
            # The stored text of an answer in progress lags behind what its run has brought.
            writing = wire.get("status") == "in_progress"
            known.update({**wire, "content": []} if writing else wire)
            return known
        self._remember(wire)
        message = Message(wire)
        if message.parent_id is None:
            self.path.clear()
        else:
            self.cut_after(message.parent_id)
        self.path.append(message)
        return message

    def cut_after(self, message_id: str) -> bool:
        """The branch ends with this message. Returns whether it is of the path at all."""
        places = [n for n, message in enumerate(self.path) if message.id == message_id]
        if places:
            del self.path[places[0] + 1 :]
        return bool(places)

    def siblings(self, message: Message) -> list[str]:
        """The messages that stand for one another in the branches, oldest first, and this one."""
        known = self._children.get(message.parent_id, [])
        return known if message.id in known else [*known, message.id]

    def settle(self, wires: list[Frame]) -> None:
        """Take the stored text of messages whose text no frame has brought."""
        for wire in wires:
            message = self.find(wire["id"])
            if message is None or wire.get("status") == "in_progress":
                continue
            message.frozen_at = None
            message.update(wire)
            message.text_length = utf16_length(message.text)  # this is what there is
            if (run := self.runs.get(message.response_id or "")) is not None:
                run.has_ended = run.is_durable = True

    def run(self, response_id: str, wire: Frame | None = None) -> Run | None:
        """The run of an answer; None if no message of the path belongs to it."""
        if (known := self.runs.get(response_id)) is not None:
            return known
        message = next((one for one in self.path if one.response_id == response_id), None)
        message = message or self._placeholder(response_id, wire)
        if message is None:
            return None
        self.runs[response_id] = Run(response_id, message)
        return self.runs[response_id]

    @property
    def active_run(self) -> Run | None:
        """The answer being written, or the first that waits: the oldest that has not ended."""
        return next((run for run in self.runs.values() if not run.has_ended), None)

    def _placeholder(self, response_id: str, wire: Frame | None) -> Message | None:
        """`response.created` names its message; an unknown one is shown all the same."""
        if wire is None or not wire.get("message_id") or not self.has_place_for(wire):
            return None
        return self.add(
            {
                "id": wire["message_id"],
                "parent_id": wire.get("parent_id"),
                "role": "assistant",
                "status": "in_progress",
                "response_id": response_id,
            }
        )

    def _remember(self, wire: Frame) -> None:
        """Which messages stand for one another; an event leaves out those before it."""
        parent_id = wire.get("parent_id")
        known = wire.get("sibling_ids") or self._children.get(parent_id, [])
        self._children[parent_id] = list(dict.fromkeys([*known, wire["id"]]))

    def _take(self, snapshot: Frame, active: list[str]) -> None:
        """Replace the path, keeping the messages that stay and the text of those being written."""
        self.title = snapshot["session"].get("title") or ""
        self.has_more = snapshot.get("has_more", False)
        held = {run.message.id: run.message for run in self.runs.values()}
        held |= {message.id: message for message in self.path}
        self.path = []
        for wire in snapshot["messages"]:
            self._remember(wire)
            message = held.get(wire["id"])
            if message is None:
                message = Message(wire)
            else:
                writing = wire.get("status") == "in_progress"
                lags = writing and len(content_text(wire.get("content"))) <= len(message.text)
                message.update({**wire, "content": []} if lags else wire)
                if not message.is_streaming:
                    message.frozen_at = None
            self.path.append(message)
        kept = {message.response_id: message for message in self.path if message.response_id}
        for response_id, run in self.runs.items():
            if (kept_message := kept.get(response_id)) is not None:
                run.message = kept_message
                run.has_ended = not kept_message.is_streaming
            elif response_id not in active:
                run.has_ended = True
            run.is_durable = True if run.has_ended else run.is_durable
        for response_id in active:
            if response_id not in kept and response_id not in self.runs:
                self._follow_elsewhere(response_id)

    def _follow_elsewhere(self, response_id: str) -> None:
        """An answer of another branch: so much of it that it can be waited for and stopped."""
        message = Message({"id": f"of:{response_id}", "role": "assistant", "status": "in_progress"})
        self.runs[response_id] = Run(response_id, message)
