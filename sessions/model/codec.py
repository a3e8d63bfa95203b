"""How records look in Redis: hashes to `Session` and `RunRecord`, bodies, token ids, payloads.

Bodies over 2 KiB are compressed; the first byte says which: `{` is JSON, `z` its length in four
bytes and zlib. Everything here is a pure function.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from sessions.model.events import (
    LiveFrame,
    LivePayload,
    LiveResponseEvents,
    LiveSessionEvents,
    SessionEvent,
    decode_event,
)
from sessions.model.ids import session_of
from sessions.model.records import Message, RunRecord, Session

MAX_PLAIN_BYTES: Final = 2048  # below it zlib saves little and costs a third of the write
# A count of tokens stays there: JavaScript cannot count further, Redis not beyond 2^63. The scripts
# know it too (sessions/lua/prelude.lua).
MAX_COUNT: Final = 2**53

SESSION_FIELDS: Final = (
    "uid",
    "title",
    "model",
    "settings",
    "revision",
    "created_at",
    "updated_at",
    "epoch",
    "offset",
    "head",
    "message_count",
    "input_tokens",
    "output_tokens",
    "active_response_id",
    "pinned",
    "locked",
    "revision_offset",
    "hidden",
    "metadata",
)


def decode_session(session_id: str, values: Sequence[bytes | None]) -> Session | None:
    """The session of an HMGET of `SESSION_FIELDS`, None if there is none."""
    if values[0] is None:
        return None
    texts = [(value or b"").decode() for value in values]
    row = dict(zip(SESSION_FIELDS, texts, strict=True))
    return Session(
        id=session_id,
        uid=row["uid"],
        title=row["title"],
        model=row["model"],
        settings=orjson.loads(row["settings"] or "{}"),
        revision=int(row["revision"]),
        created_at=int(row["created_at"]),
        updated_at=int(row["updated_at"]),
        epoch=row["epoch"],
        offset=int(row["offset"]),
        head=row["head"] or None,
        message_count=int(row["message_count"]),
        input_tokens=decode_count(row["input_tokens"]),
        output_tokens=decode_count(row["output_tokens"]),
        active_response_id=row["active_response_id"] or None,
        pinned=row["pinned"] == "1",
        locked=row["locked"] != "",
        revision_offset=int(row["revision_offset"] or 0),
        hidden=row["hidden"] == "1",
        metadata=orjson.loads(row["metadata"] or "{}"),
    )


def decode_count(text: str) -> int:
    """A session's count of tokens; one that grew without a bound makes no list unreadable."""
    return min(int(text), MAX_COUNT)


TOKEN_ID_BYTES: Final = 4
_RUN_TEXTS: Final = ("uid", "status", "owner", "message_id", "model", "cancel_by", "cancel_reason")
_RUN_NUMBERS: Final = ("fence", "lease_until", "sequence_number", "created_at", "num_tokens")
_RUN_OPTIONAL_NUMBERS: Final = (
    "seed",
    "seen_sequence_number",
    "cancel_at",
    "started_at",
    "first_token_at",
    "aborted_at",
    "done_at",
)
_RUN_INTERNAL: Final = frozenset({"last_call", "old_owner", "done_offset", "next"})
_RUN_OTHERS: Final = frozenset(
    {"parent_id", "settings", "prompt_from", "cancel", "text_length", "reason", "engine"}
)
MANAGED_RUN_FIELDS: Final = (
    frozenset({*_RUN_TEXTS, *_RUN_NUMBERS, *_RUN_OPTIONAL_NUMBERS}) | _RUN_INTERNAL | _RUN_OTHERS
) - {"prompt_from", "started_at", "first_token_at", "aborted_at"}


def decode_run(response_id: str, stored: Mapping[bytes, bytes]) -> RunRecord | None:
    """The run of an HGETALL, None if there is none."""
    row = {name.decode(): value.decode() for name, value in stored.items()}
    if "status" not in row:
        return None
    values: dict[str, Any] = {name: row.pop(name, "") for name in _RUN_TEXTS}
    values |= {name: int(row.pop(name)) for name in _RUN_NUMBERS}
    for name in _RUN_OPTIONAL_NUMBERS:
        text = row.pop(name, "")
        values[name] = int(text) if text else None
    return RunRecord(
        response_id=response_id,
        session_id=session_of(response_id),
        **values,
        parent_id=row.pop("parent_id", "") or None,
        settings=orjson.loads(row.pop("settings", "") or "{}"),
        prompt_from=row.pop("prompt_from", "") or None,
        cancel=row.pop("cancel", "") == "1",
        text_length=int(row.pop("text_length", "") or 0),
        reason=row.pop("reason", ""),
        engine=row.pop("engine", ""),
        extra={name: value for name, value in row.items() if name not in _RUN_INTERNAL},
    )


def encode_body(message: Message) -> bytes:
    """A message as it is stored."""
    return encode_object(replace(message, sibling_ids=()).wire())


def encode_object(data: Mapping[str, Any]) -> bytes:
    """An object as bodies are stored."""
    body = orjson.dumps(dict(data))
    if len(body) <= MAX_PLAIN_BYTES:
        return body
    return b"z" + len(body).to_bytes(4, "big") + zlib.compress(body, 1)


def decode_object(body: bytes) -> dict[str, Any]:
    """The object of `encode_object`."""
    data: dict[str, Any] = orjson.loads(zlib.decompress(body[5:]) if body[:1] == b"z" else body)
    return data


def decode_body(
    body: bytes, children: Mapping[str | None, tuple[str, ...]] | None = None
) -> Message:
    """The message of a stored body; its siblings are filled in when `children` are given."""
    data = decode_object(body)
    return Message.from_wire(data, children[data["parent_id"]] if children else ())


def size_of_body(body: bytes) -> int:
    """How long a stored body is when it is not compressed; what quotas count."""
    return int.from_bytes(body[1:5], "big") if body[:1] == b"z" else len(body)


def encode_token_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as u32 little endian."""
    ids = array("I", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def decode_token_ids(stored: bytes) -> list[int]:
    """The token ids of `encode_token_ids`."""
    ids = array("I")
    ids.frombytes(stored)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def decode_entries(entries: Iterable[Any]) -> list[tuple[int, bytes]]:
    """Number and JSON of each entry of an XRANGE over one of our streams."""
    return [(int(name.split(b"-")[0]), fields[1]) for name, fields in entries]


def decode_session_events(entries: Iterable[Any]) -> list[SessionEvent]:
    """The events of an XRANGE over a session's log."""
    return [SessionEvent(offset, orjson.loads(data)) for offset, data in decode_entries(entries)]


def decode_live(session_id: str | None, payload: bytes) -> LivePayload:
    """A published payload; `session_id` None for channels that are not a session's.

    `s <epoch> <offset>` or `r <rid> <fence> <first> <last>`, then one entry on each line; or one
    JSON object, of something that is not stored.
    """
    if session_id is None or payload[:1] == b"{":
        return LiveFrame(orjson.loads(payload))
    head, *lines = payload.split(b"\n")
    words = head.decode().split(" ")
    if words[0] == "s":
        events = tuple(orjson.loads(line) for line in lines)
        return LiveSessionEvents(session_id, words[1], int(words[2]), events)
    if words[0] != "r":
        raise ValueError("unknown live payload")
    return LiveResponseEvents(
        response_id=words[1],
        fence=int(words[2]),
        first=int(words[3]),
        last=int(words[4]),
        events=tuple(decode_event(line) for line in lines),
    )
