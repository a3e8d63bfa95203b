"""Which adapters administrators have loaded, for the workers of all hosts.

An adapter is known by what its files are, a hash: a host whose files are others must not serve it
under this name. Its number is drawn anew whenever one is loaded, and never used again.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys

NUMBER_BITS: Final = 53  # what JavaScript can hold


@dataclass(frozen=True, slots=True)
class Adapter:
    """One that is loaded."""

    name: str
    number: int  # by which engines know it
    content_hash: str
    loaded_at: int  # milliseconds since 1970
    loaded_by: str  # the user's id

    @classmethod
    def load(cls, name: str, content_hash: str, loaded_by: str) -> Adapter:
        """One that is loaded now."""
        number = secrets.randbits(NUMBER_BITS) or 1
        return cls(name, number, content_hash, int(time.time() * 1000), loaded_by)


class AdapterBook:
    """The loaded ones, by name. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def all(self) -> dict[str, Adapter]:
        """In the order of their names."""
        rows = await self._client.call("HGETALL", self._keys.adapters)
        found = {name.decode(): orjson.loads(value) for name, value in rows.items()}
        return {name: _adapter(name, found[name]) for name in sorted(found)}

    async def put(self, adapter: Adapter) -> None:
        """Replaces another one of this name."""
        value = {
            "number": adapter.number,
            "content_hash": adapter.content_hash,
            "loaded_at": adapter.loaded_at,
            "loaded_by": adapter.loaded_by,
        }
        await self._client.call("HSET", self._keys.adapters, adapter.name, orjson.dumps(value))

    async def remove(self, name: str) -> bool:
        """False: none of this name is loaded."""
        return bool(await self._client.call("HDEL", self._keys.adapters, name))


def _adapter(name: str, value: dict[str, Any]) -> Adapter:
    return Adapter(
        name,
        value["number"],
        value["content_hash"],
        value["loaded_at"],
        value["loaded_by"],
    )
