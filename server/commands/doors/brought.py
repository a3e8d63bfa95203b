"""`Brought`: what a door brings to the beginning of an answer that no frame of `chat.v1` says."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sessions.model.ids import new_message_id
from sessions.model.queue import TakenInput
from sessions.model.records import UNSET, Message, Unset


async def nothing() -> None:
    """The session is there."""


@dataclass(frozen=True, slots=True)
class Brought:
    """Messages to store with the answer, and the door's own words to keep with it."""

    door: str  # its name
    messages: Sequence[Message]  # each below the one before; the last one is the question
    leaf: str | Unset | None  # what they follow; UNSET: the session's head of that moment
    asked: Mapping[str, Any]
    settings: Mapping[str, Any]  # that no frame says: they go on with the others
    body_hash: str  # names what was asked for, so that a key used for something else is noticed
    prepare: Callable[[], Awaitable[None]] = nothing  # makes the session, when nothing is refused

    @property
    def question(self) -> Message:
        return self.messages[-1]

    @property
    def before(self) -> Sequence[Message]:
        """The messages before the question."""
        return self.messages[:-1]

    @staticmethod
    def of_taken(taken: TakenInput, head: str | None) -> "Brought | None":
        """What waited in a session's queue, with a door's words; None if no door has brought it."""
        first = taken.items[0]
        if first.brought is None:
            return None
        now_ms = time.time_ns() // 1_000_000
        question = Message(new_message_id(), head, "user", taken.text, "completed", now_ms)
        words = first.brought
        return Brought(
            words["door"], [question], UNSET, words["asked"], words["settings"], first.body_hash
        )
