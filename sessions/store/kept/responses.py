"""The store's part for what a door has kept of a response: how it was asked, and where its text is.

A run and its log go ten minutes after their end; this stays as long as the session. It lies beside
the messages, under the response's id, and its bytes count with theirs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sessions.model.arguments import check_owner
from sessions.model.codec import decode_object, encode_object
from sessions.model.errors import ResponseNotFound, RunLive, SessionNotFound
from sessions.model.ids import is_response_id, session_of
from sessions.store.context import StoreContext


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """What is known of a response for as long as its session lives."""

    response_id: str
    message_id: str  # that it writes
    input_ids: tuple[str, ...]  # messages that were stored with it: what it was asked
    created_at: int
    asked: Mapping[str, Any]  # the door's own words

    def encode(self) -> bytes:
        """As it is stored."""
        return encode_object(
            {
                "message_id": self.message_id,
                "input_ids": list(self.input_ids),
                "created_at": self.created_at,
                "asked": dict(self.asked),
            }
        )

    @staticmethod
    def decode(response_id: str, stored: bytes) -> KeptResponse:
        """Unknown fields are ignored."""
        data = decode_object(stored)
        return KeptResponse(
            response_id,
            data["message_id"],
            tuple(data["input_ids"]),
            data["created_at"],
            data["asked"],
        )


class KeptResponses:
    """Read and removed here; `Responses.begin` writes them."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys

    async def get(self, uid: str, response_id: str) -> KeptResponse:
        """Raises `ResponseNotFound`, also for a response of no door."""
        if not is_response_id(response_id):
            raise ResponseNotFound
        session_id = session_of(response_id)
        owner, stored = await self._client.calls(
            ("HGET", self._keys.session(session_id, "m"), "uid"),
            ("HGET", self._keys.session(session_id, "msg"), response_id),
        )
        try:
            check_owner(uid, owner)
        except SessionNotFound:
            raise ResponseNotFound from None
        if stored is None:
            raise ResponseNotFound
        return KeptResponse.decode(response_id, stored)

    async def remove(self, uid: str, response_id: str, message_ids: Sequence[str] = ()) -> int:
        """Forget it; with it go these messages, unless another one follows one of them.

        How many messages the session still has. Raises `ResponseNotFound`, and `RunLive` for a
        response that has not ended.
        """
        if not is_response_id(response_id):
            raise ResponseNotFound
        session_id = session_of(response_id)
        reply = await self._client.script(
            "remove_response",
            [
                *self._context.session_keys(session_id, "m", "msg", "tree", "ids", "runs"),
                *self._context.run_keys(session_id, response_id),
            ],
            uid=uid,
            response_id=response_id,
            call_id=secrets.token_urlsafe(6),
            message_ids=list(message_ids),
        )
        if reply[0] == b"live":
            raise RunLive(0, "")
        if reply[0] != b"ok":
            raise ResponseNotFound
        return int(reply[1])
