"""`Calls`: where a call that is repeated finds its answer, of those that nothing is stored of.

Only places are stored, each for a minute: which worker has which call. The answer itself is in the
memory of that worker, which sends it to another one through a channel. Names are the caller's, who
makes them so that nobody can guess what they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from sessions.connection.client import RedisClient
from sessions.model.keys import CALL_MS, Keys
from sessions.store.context import PUBLISH


class Place(NamedTuple):
    """A call, and the worker that has its answer."""

    replica: str
    call_id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Who has an idempotency key, and what it was used for."""

    place: Place
    body: str


class Calls:
    """Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    # ---- calls whose clients have gone -----------------------------------------------------------

    async def leave(self, name: str, place: Place) -> None:
        """The next repeat of that name may have this call."""
        key = self._keys.left_calls(name)
        await self._client.calls(
            ("RPUSH", key, " ".join(place)),
            ("PEXPIRE", key, CALL_MS),
        )

    async def take(self, name: str) -> Place | None:
        """A call that was left under that name; nobody else is given it."""
        found = await self._client.call("LPOP", self._keys.left_calls(name))
        return None if found is None else Place(*found.decode().split(" "))

    async def withdraw(self, name: str, place: Place) -> None:
        """It has ended, or its repeat has come to its worker."""
        await self._client.call("LREM", self._keys.left_calls(name), 0, " ".join(place))

    # ---- idempotency keys ------------------------------------------------------------------------

    async def claim(self, name: str, body: str, place: Place, instead_of: str = "") -> Claim:
        """Let this call be the one of that name, unless there is one; which one it is then.

        `instead_of` is a call that is known to be lost.
        """
        reply = await self._client.script(
            "claim_call",
            [self._keys.keyed_call(name)],
            body=body,
            replica=place.replica,
            call_id=place.call_id,
            instead_of=instead_of,
            life_ms=CALL_MS,
        )
        if reply[0] == b"ok":
            return Claim(place, body)
        body, replica, call_id = (value.decode() for value in reply[1:])
        return Claim(Place(replica, call_id), body)

    async def renew(self, name: str) -> None:
        """The call of that name still runs, or its answer begins to be kept."""
        await self._client.call("PEXPIRE", self._keys.keyed_call(name), CALL_MS)

    async def drop(self, name: str, call_id: str) -> None:
        """That call has no answer to give again."""
        await self._client.script("drop_call", [self._keys.keyed_call(name)], call_id=call_id)

    # ---- from worker to worker -------------------------------------------------------------------

    async def ask(self, place: Place, channel: str) -> bool:
        """Ask its worker for a call's answer; False means that this worker is gone."""
        command = {"type": "relay", "call_id": place.call_id, "channel": channel}
        return await self._publish(self._keys.control_channel(place.replica), command)

    async def dismiss(self, place: Place, channel: str) -> None:
        """Nobody reads that answer any more."""
        command = {"type": "relay_end", "channel": channel}
        await self._publish(self._keys.control_channel(place.replica), command)

    async def send(self, channel: str, frame: Mapping[str, Any]) -> bool:
        """A part of an answer to who has asked for it; False means that nobody listens."""
        return await self._publish(self._keys.relay_channel(channel), frame)

    async def _publish(self, channel: str, frame: Mapping[str, Any]) -> bool:
        receivers = await self._client.call(PUBLISH, channel, orjson.dumps(dict(frame)))
        return int(receivers) > 0 or self._client.is_cluster  # whose nodes count only their own
