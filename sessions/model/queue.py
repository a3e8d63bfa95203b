"""The queue of a session: what its user wants to ask next, until it is asked.

What waits is no message yet, so it can be edited, moved and withdrawn. Everything here is a value:
a change gives another queue, and the store keeps it if nobody else has changed it meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from sessions.model.errors import ItemNotFound, QueueFull

# What an idempotency key stands for, in place of a response, while its words wait and after that.
QUEUED: Final = "queued"
REMOVED: Final = "removed"
# Of a new entry in the index: time enough for its data to come, and for its owner to begin it.
LOOK_AFTER_MS: Final = 5_000
MAX_ITEMS: Final = 16
MAX_BYTES: Final = 256 * 1024  # of all texts together
MAX_ASKED_BYTES: Final = 128 * 1024  # of one question
# An event leaves a longer text out: each change of a queue logs all that waits there.
MAX_SHOWN_BYTES: Final = 512
SHOWN_CHARACTERS: Final = 100  # of a text that is left out
LONG_SETTINGS: Final = ("system", "output")  # those that count as texts


JOINT: Final = "\n\n"  # between texts that are asked together


def derived_item_id(session_id: str, idempotency_key: str) -> str:
    """The id that this session and key always give, so that a repeat names the same item."""
    digest = hashlib.sha256(f"item\0{session_id}\0{idempotency_key}".encode()).digest()[:16]
    return "item_" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedInput:
    """Something to be asked. It becomes a message when its turn comes."""

    id: str
    idempotency_key: str
    body_hash: str  # of the frame that added it: what a repeat must equal
    text: str
    settings: dict[str, Any] = field(default_factory=dict)  # that take precedence, as stored
    created_at: int = 0  # milliseconds since 1970
    now: bool = False  # it is asked as soon as may be, also of a queue that is paused
    steers: str | None = None  # the answer that it ends for that, to go on with these words
    error: dict[str, str] | None = None  # why it could not be asked: `code` and `message`
    # What a door brings to the answer (`server/commands/doors/brought.py`): `door`, `asked` and
    # `settings`. No client of the queue is shown it.
    brought: dict[str, Any] | None = None

    @property
    def num_bytes(self) -> int:
        """Of its texts, and of a door's words."""
        words = 0 if self.brought is None else len(orjson.dumps(self.brought))
        return len(self.text.encode()) + sum(map(self._bytes_of, LONG_SETTINGS)) + words

    def wire(self, *, whole: bool = True) -> dict[str, Any]:
        """The `queue_item` object of the protocol; not `whole`: without texts over 512 bytes."""
        item: dict[str, Any] = {
            "id": self.id,
            "idempotency_key": self.idempotency_key,
            "input": self.text,
            "settings": self.settings,
            "created_at": self.created_at,
        }
        if not whole and len(self.text.encode()) > MAX_SHOWN_BYTES:
            del item["input"]
            item |= {"beginning": self.text[:SHOWN_CHARACTERS], "content_omitted": True}
        long = [name for name in LONG_SETTINGS if self._bytes_of(name) > MAX_SHOWN_BYTES]
        if not whole and long:
            item["settings"] = {k: v for k, v in self.settings.items() if k not in long}
            item["content_omitted"] = True
        if self.now:
            item["now"] = True
        if self.steers is not None:
            item["steers"] = self.steers
        if self.error is not None:
            item["error"] = self.error
        return item

    def _bytes_of(self, name: str) -> int:
        """Of a setting: its text, or its JSON."""
        value = self.settings.get(name, "")
        return len(value.encode() if isinstance(value, str) else orjson.dumps(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRound:
    """An answer that follows by itself: the server has carried out what the one before has called.

    It stands beside the queue, where no worker of an older version takes it for a question.
    """

    response_id: str  # that has ended with calls
    message_id: str  # its message, which has what became of them
    settings: dict[str, Any]  # in force, as they were
    priority: int = 0
    traceparent: str | None = None
    raw: bytes = b""  # as the store has it

    @property
    def idempotency_key(self) -> str:
        """The same for all who begin it."""
        return "calls_" + self.response_id.removeprefix("resp_")

    def encode(self) -> bytes:
        """As it is stored."""
        return self.raw or orjson.dumps(
            {
                "response_id": self.response_id,
                "message_id": self.message_id,
                "settings": self.settings,
                "priority": self.priority,
                "traceparent": self.traceparent,
            }
        )

    @staticmethod
    def decode(raw: bytes) -> NextRound:
        """Fields that a later version has stored are ignored."""
        known = NextRound.__dataclass_fields__
        stored = {name: each for name, each in orjson.loads(raw).items() if name in known}
        return NextRound(**stored, raw=raw)


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits in a session, in order. `revision` grows with each change."""

    revision: int = 0
    items: tuple[QueuedInput, ...] = ()
    is_paused: bool = False  # its user stopped an answer: nothing begins by itself
    next_round: NextRound | None = None  # comes before all of it; no change touches it

    def item(self, item_id: str) -> QueuedInput:
        """Raises `ItemNotFound`."""
        if (found := self.find(item_id)) is None:
            raise ItemNotFound
        return found

    def find(self, item_id: str) -> QueuedInput | None:
        """None if it is not there."""
        return next((item for item in self.items if item.id == item_id), None)

    def added(self, item: QueuedInput, place: int | None = None) -> Queue:
        """With one more, at that place, by default the last. Raises `QueueFull`.

        One that is asked now goes before all that are not, after those that are.
        """
        items = list(self.items)
        least = self._num_now(items)
        items.insert(
            least if item.now else len(items) if place is None else max(place, least), item
        )
        return self._with(items)

    def changed(
        self,
        item_id: str,
        *,
        text: str | None = None,
        settings: Mapping[str, Any] | None = None,
        place: int | None = None,
    ) -> Queue:
        """With what is given of an item; its error goes. Raises `ItemNotFound` and `QueueFull`."""
        old = self.item(item_id)
        new = replace(
            old,
            text=old.text if text is None else text,
            settings=old.settings if settings is None else dict(settings),
            error=None,
        )
        items = [new if item is old else item for item in self.items]
        if place is not None:
            items.remove(new)
            items.insert(max(place, 0 if new.now else self._num_now(items)), new)
        return self._with(items)

    def without(self, items: Iterable[QueuedInput]) -> Queue:
        """Without these."""
        gone = {item.id for item in items}
        return self._with([item for item in self.items if item.id not in gone])

    def sent(self, item_id: str, steers: str | None) -> Queue:
        """With that item asked now, instead of the answer `steers` if there is one.

        Raises `ItemNotFound`.
        """
        item = replace(self.item(item_id), now=True, steers=steers, error=None)
        return self.without([item]).added(item)

    def resumed(self) -> Queue:
        """Its items begin by themselves again."""
        return replace(self, is_paused=False)

    def refused(self, tried: QueuedInput, code: str, message: str) -> Queue:
        """With the reason why that item could not be asked, which everything after it waits for.

        The same queue if it was changed since it was tried.
        """
        error = {"code": code, "message": message}
        refused = replace(tried, error=error, now=False, steers=None)
        return replace(self, items=tuple(refused if i == tried else i for i in self.items))

    @property
    def due(self) -> tuple[QueuedInput, ...]:
        """What is asked next, in one question: the first, and what steers the same answer.

        Empty while nothing may begin: what could not be asked holds up the rest, and a pause all
        but what is to be asked now.
        """
        if not self.items:
            return ()
        first, *others = self.items
        if first.error is not None or (self.is_paused and not first.now):
            return ()
        due = [first]
        size = len(first.text.encode())
        for item in others:
            is_alike = (item.steers, item.settings, item.brought) == (
                first.steers,
                first.settings,
                first.brought,
            )
            size += len(item.text.encode()) + len(JOINT)
            if first.steers is None or not is_alike or size > MAX_ASKED_BYTES:
                break
            due.append(item)
        return tuple(due)

    @staticmethod
    def _num_now(items: Sequence[QueuedInput]) -> int:
        """How many come before all others."""
        return sum(item.now for item in items)

    def _with(self, items: Sequence[QueuedInput]) -> Queue:
        """Raises `QueueFull`."""
        size = sum(item.num_bytes for item in items)
        if len(items) > MAX_ITEMS or size > MAX_BYTES:
            raise QueueFull("")
        return replace(self, items=tuple(items), is_paused=self.is_paused and bool(items))

    # ---- as it is stored and sent ----------------------------------------------------------------

    def wire(self, *, whole: bool = True) -> dict[str, Any]:
        """The `queue` object of the protocol; not `whole`: as events have it."""
        items = [item.wire(whole=whole) for item in self.items]
        return {"revision": self.revision, "paused": self.is_paused, "items": items}

    def encode(self) -> bytes:
        """The items, for `decode_queue`."""
        return orjson.dumps(self.items)

    def encode_shown(self) -> bytes:
        """The items as events have them."""
        return orjson.dumps([item.wire(whole=False) for item in self.items])


@dataclass(frozen=True, slots=True)
class TakenInput:
    """What is asked now, and the queue that it was read from."""

    queue: Queue
    items: tuple[QueuedInput, ...]  # one question together

    @property
    def text(self) -> str:
        return JOINT.join(item.text for item in self.items)

    @property
    def rest(self) -> Queue:
        """What waits still."""
        return self.queue.without(self.items)


def decode_queue(values: Sequence[bytes | None]) -> Queue:
    """The queue of an HMGET of `QUEUE_FIELDS`; fields that a later version stored are ignored."""
    items, revision, paused, next_round = values
    known = QueuedInput.__dataclass_fields__
    return Queue(
        int(revision or 0),
        tuple(
            QueuedInput(**{name: value for name, value in item.items() if name in known})
            for item in orjson.loads(items or b"[]")
        ),
        paused == b"1",
        NextRound.decode(next_round) if next_round else None,
    )


# Of a session's hash.
QUEUE_FIELDS: Final = ("queue", "queue_revision", "queue_paused", "next_round")
