"""What users and groups are called now, and whose a session is, for lists that know their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys


class Called:
    """Who is gone is not among the answers. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def users(self, ids: Iterable[str]) -> dict[str, str]:
        """Id → name."""
        return await self._read(ids, self._keys.user_record, "name")

    async def groups(self, ids: Iterable[str]) -> dict[str, str]:
        """Id → name."""
        return await self._read(ids, self._keys.group_record, "name")

    async def owners(self, session_ids: Iterable[str]) -> dict[str, str]:
        """Id → the id of the session's user."""
        return await self._read(session_ids, lambda one: self._keys.session(one, "m"), "uid")

    async def _read(
        self, ids: Iterable[str], key_of: Callable[[str], str], field: str
    ) -> dict[str, str]:
        wanted = list(dict.fromkeys(ids))
        values = await self._client.read_each(list(map(key_of, wanted)), "HGET", field)
        return {one: value.decode() for one, value in zip(wanted, values, strict=True) if value}
