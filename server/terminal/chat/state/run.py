"""One message, and one answer as this client follows it: the ordering rules of docs/protocol.md.

`last` is the number of the last entry applied; `fence` is stored and sent back, never compared. An
entry numbered `last + 1` is applied, an old one dropped; anything else is a gap, for which the rest
is asked once. A snapshot replaces, and the end is applied whatever is missing before it. An end
that was not stored yet is not the last word: another one follows, or a snapshot goes on.
"""

from enum import Enum
from typing import Any

from server.protocol.entries import is_final
from sessions.model.records import utf16_length, utf16_prefix

Frame = dict[str, Any]

MAX_REBUILDS = 2  # a text that is wrong a third time will not become right by asking again
MESSAGE_STATUS = {
    "queued": "in_progress",
    "in_progress": "in_progress",
    "completed": "completed",
    "cancelled": "interrupted",
    "incomplete": "interrupted",
    "failed": "failed",
}


class Outcome(Enum):
    """What became of a frame."""

    TAKEN = "taken"
    DROPPED = "dropped"
    RESUME = "resume"  # the caller sends our position
    REFETCH = "refetch"  # the caller reads the stored text


def content_text(content: list[dict[str, Any]] | None) -> str:
    return "".join(part["text"] for part in content or () if part["type"] == "text")


class Message:
    """One message of a session. `text` is what the server said so far."""

    def __init__(self, wire: Frame) -> None:
        self.id: str = wire["id"]
        self.parent_id: str | None = None
        self.role: str = wire.get("role", "assistant")
        self.status = "completed"
        self.reason: str | None = None
        self.details: str | None = None
        self.response_id: str | None = None
        self.text = ""
        self.thoughts = ""
        self.text_length: int | None = None
        self.usage: Frame | None = None
        self.timings: Frame | None = None
        self.frozen_at: int | None = None  # characters; text beyond them came after our stop
        self.items: dict[str, Frame] = {}  # calls of tools and what became of them, by id
        self.num_omitted = 0  # messages that the model was not told of
        self.update(wire)

    def update(self, wire: Frame) -> None:
        """Take what a wire message says; a content that is missing leaves the text alone."""
        self.parent_id = wire.get("parent_id", self.parent_id)
        self.status = wire.get("status", self.status)
        self.response_id = wire.get("response_id") or self.response_id
        self.usage = wire.get("usage") or self.usage
        self.timings = wire.get("timings") or self.timings
        self.text_length = wire.get("text_length", self.text_length)
        details = wire.get("status_details") or {}
        self.reason = details.get("reason", self.reason)
        self.details = details.get("message", self.details)
        if wire.get("content") and not wire.get("content_omitted"):
            self.text = content_text(wire["content"])
            self.thoughts = wire.get("reasoning", "")
            stored = [*wire.get("tool_calls", ()), *wire.get("tool_outputs", ())]
            self.items = {item["id"]: item for item in stored}

    @property
    def is_streaming(self) -> bool:
        return self.role == "assistant" and self.status == "in_progress"

    @property
    def is_incomplete(self) -> bool:
        """Whether the text is shorter or longer than the server says."""
        return self.text_length is not None and utf16_length(self.text) != self.text_length

    @property
    def visible_text(self) -> str:
        return self.text if self.frozen_at is None else self.text[: self.frozen_at]


class Run:
    """One answer. Frames go in; the message has the text."""

    def __init__(self, response_id: str, message: Message) -> None:
        self.id = response_id
        self.message = message
        self.fence, self.last = 1, 0
        self.has_ended = False
        self.is_durable = True
        self.is_resuming = False
        self.is_stopping = False
        self.queued: Frame | None = None
        self.progress: Frame | None = None
        self._parts: list[Frame] = []
        self._is_fresh = True  # no text applied since number 1: it may start over
        self._num_rebuilds = 0

    @property
    def is_settled(self) -> bool:
        """Whether the end is stored, so that nothing else can follow."""
        return self.has_ended and self.is_durable

    def position(self) -> Frame:
        """Where this client stands, as `session.subscribe` and `response.resume` carry it."""
        return {"response_id": self.id, "fence": self.fence, "after_sequence_number": self.last}

    def freeze(self) -> None:
        """Show nothing beyond what is there now, until the end says how long the text is."""
        self.is_stopping = True
        if self.message.frozen_at is None:
            self.message.frozen_at = len(self.message.text)

    def receive(self, frame: Frame) -> Outcome:
        """Take a frame of this answer."""
        match frame["type"]:
            case "response.queued":
                self.queued = None if self.has_ended else frame
            case "response.progress":
                self.progress = None if self.has_ended else frame
            case "response.cancelling":
                self.is_stopping = not self.has_ended
            case "response.output_text.snapshot":
                return self._replace(frame)
            case "response.done":
                return self._end(frame)
            case _ if "sequence_number" in frame:
                return self._number(frame)
        return Outcome.TAKEN

    def _number(self, frame: Frame) -> Outcome:
        number = frame["sequence_number"]
        if self.has_ended or number <= self.last or self._parts:
            return Outcome.DROPPED
        if frame.get("first_sequence_number", number) != self.last + 1:
            return self._ask_again()
        self.is_resuming = False
        self.last, self.fence = number, frame["fence"]
        return self._apply(frame)

    def _apply(self, frame: Frame) -> Outcome:
        message = self.message
        match frame["type"]:
            case "response.created":
                self._is_fresh = True
            case "response.in_progress":
                self.queued = None
                message.num_omitted = frame.get("omitted_messages", 0)
            case "response.output_text.delta":
                return self._append(frame)
            case "response.reasoning_text.delta":
                message.thoughts = utf16_prefix(message.thoughts, frame["text_offset"])
                message.thoughts += frame["delta"]
            case "response.output_item.added" | "response.output_item.done":
                message.items[frame["item"]["id"]] = frame["item"]
        return Outcome.TAKEN  # one of a kind that is unknown counts, so that the next is no gap

    def _append(self, frame: Frame) -> Outcome:
        self.queued = None
        message, offset = self.message, frame["text_offset"]
        if self._is_fresh:  # what a continued answer has, and nothing else, may stand before
            message.text = utf16_prefix(message.text, offset)
            self._is_fresh = False
        if utf16_length(message.text) != offset:
            return self._start_over()
        message.text += frame["delta"]
        return Outcome.TAKEN

    def _replace(self, frame: Frame) -> Outcome:
        if self.is_settled:
            return Outcome.DROPPED
        if frame["part"] == 1:
            self._parts = []
        self._parts.append(frame)
        if frame["part"] < frame["parts"]:
            return Outcome.TAKEN
        parts, self._parts = self._parts, []
        if len(parts) != frame["parts"]:
            return self._start_over()
        if self.has_ended:  # the end that came was never stored: the answer goes on
            self.has_ended, self.is_durable = False, True
            self.message.status, self.message.reason = "in_progress", None
            self.message.text_length = None
        self.message.text = "".join(part["text"] for part in parts)
        thoughts = [part["reasoning_text"] for part in parts if "reasoning_text" in part]
        if thoughts or not self._is_fresh:  # a continued answer has what it had thought before
            self.message.thoughts = "".join(thoughts)
        items = [item for part in parts for item in part.get("output", ())]
        self.message.items = {item["id"]: item for item in items}
        self._is_fresh, self._num_rebuilds = False, 0
        self.is_resuming, self.queued = False, None
        self.last, self.fence = frame["sequence_number"], frame["fence"]
        return Outcome.TAKEN

    def _end(self, frame: Frame) -> Outcome:
        if self.is_settled and frame["sequence_number"] <= self.last:
            return Outcome.DROPPED
        response, message = frame["response"], self.message
        text = frame.get("text", message.text)
        length = response.get("text_length", utf16_length(text))
        message.text = utf16_prefix(text, length)
        message.frozen_at = None
        message.update(
            {
                "status": MESSAGE_STATUS.get(response["status"], "completed"),
                "status_details": response.get("status_details"),
                "usage": response.get("usage"),
                "timings": response.get("timings"),
                "text_length": length,
            }
        )
        self.has_ended, self.is_durable = True, is_final(frame)
        self.is_resuming = self.is_stopping = False
        self.queued = self.progress = None
        self.last = max(self.last, frame["sequence_number"])
        self.fence = frame.get("fence", self.fence)
        return Outcome.REFETCH if message.is_incomplete else Outcome.TAKEN

    def _ask_again(self) -> Outcome:
        """A gap: ask once for what follows, and let deltas pass until the answer comes."""
        if self.is_resuming:
            return Outcome.DROPPED
        self.is_resuming = True
        return Outcome.RESUME

    def _start_over(self) -> Outcome:
        """The text held is not the server's: have the whole of it sent again."""
        self._num_rebuilds += 1
        self.last, self._parts, self.is_resuming = 0, [], True
        return Outcome.RESUME if self._num_rebuilds <= MAX_REBUILDS else Outcome.DROPPED
