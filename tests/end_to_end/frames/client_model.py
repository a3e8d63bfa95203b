"""A client's picture of one answer, by the ordering rules of docs/protocol.md and nothing else."""

from dataclasses import dataclass, field
from typing import Any

Frame = dict[str, Any]

UNKNOWN = "\0"  # stands for each code unit that a client holds and the test does not know


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def utf16_prefix(text: str, length: int) -> str:
    return text.encode("utf-16-le")[: length * 2].decode("utf-16-le")


def matches(one: str, other: str) -> bool:
    """Whether two texts are the same, as far as both are known: each may begin with `UNKNOWN`."""
    unknown = max(len(text) - len(text.lstrip(UNKNOWN)) for text in (one, other))
    first, second = one.encode("utf-16-le"), other.encode("utf-16-le")
    return len(first) == len(second) and first[unknown * 2 :] == second[unknown * 2 :]


def is_final(done: Frame | None) -> bool:
    """Whether that end is there and no other may follow it."""
    if done is None:
        return False
    return bool(done["durable"]) or done["response"]["status_details"]["reason"] == "store_lost"


@dataclass
class Answer:
    """What one client knows of one response. `apply` raises AssertionError for a broken rule."""

    text: str = ""
    last: int = 0
    fence: int = 0
    num_deltas: int = 0
    done: Frame | None = None
    frames: list[Frame] = field(default_factory=list)
    is_text_unknown: bool = False  # until a frame tells how long it is

    @property
    def final(self) -> str:
        """The text after `response.done`."""
        assert self.done is not None
        return utf16_prefix(self.done.get("text", self.text), self.done["response"]["text_length"])

    def apply(self, frame: Frame) -> None:
        """Take one numbered frame, or one part of a snapshot."""
        kind = frame["type"]
        last: int = frame["sequence_number"]
        first = frame.get("first_sequence_number", last)
        self.frames.append(frame)
        if self.done is not None and not self.done["durable"]:
            self.done = None  # that was not promised yet: another owner may have gone on
        if kind == "response.done":
            assert self.done is None, f"a second response.done: {frame}"
            # Another owner may have ended it with less than the first one had shown: who stopped
            # it gets no snapshot, so this end has the text or cuts it.
            is_in_order = last >= self.last or frame["fence"] > self.fence
            assert is_in_order, f"response.done {last} after number {self.last}"
            self.done = frame
        else:
            assert self.done is None, f"{kind} {last} after response.done"
            if kind == "response.output_text.snapshot":
                self.text = frame["text"] if frame["part"] == 1 else self.text + frame["text"]
                self.is_text_unknown = False
            else:
                assert first == self.last + 1, f"number {first} after number {self.last}"
                assert last >= first, frame
                if kind == "response.output_text.delta":
                    self._apply_delta(frame)
                elif kind == "response.created" and not self.text:
                    # A continued message: its beginning is another response's.
                    self.text = UNKNOWN * frame["response"].get("text_length", 0)
        self.last, self.fence = last, frame["fence"]

    def _apply_delta(self, frame: Frame) -> None:
        if self.is_text_unknown:
            self.text, self.is_text_unknown = UNKNOWN * frame["text_offset"], False
        held = utf16_length(self.text)
        assert frame["text_offset"] == held, f"text_offset of {frame}, with {held} held"
        self.text += frame["delta"]
        self.num_deltas += 1

    def begin_at(self, number: int, text: str | None) -> None:
        """Go on after this number, with that text; None if it is not known."""
        self.text, self.last, self.done = text or "", number, None
        self.is_text_unknown = text is None
