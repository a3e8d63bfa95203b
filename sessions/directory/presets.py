"""Settings that a user has named, to use them again; one of them is that of new chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sessions.connection.client import Command, RedisClient
from sessions.model.errors import QuotaExceeded
from sessions.model.keys import Keys

MAX_PRESETS: Final = 50  # of one user
_DEFAULT: Final = ""  # the field that names it: no preset has an empty name


@dataclass(frozen=True, slots=True)
class PresetList:
    """A user's presets."""

    settings: dict[str, dict[str, Any]]  # by name, in the order of the names
    default: str | None  # the one that new chats begin with


class PresetBook:
    """The presets of all users. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def of_user(self, uid: str) -> PresetList:
        rows = await self._client.call("HGETALL", self._keys.user_presets(uid))
        stored = {name.decode(): value for name, value in rows.items()}
        default = stored.pop(_DEFAULT, b"").decode()
        settings = {name: orjson.loads(stored[name]) for name in sorted(stored, key=str.casefold)}
        return PresetList(settings, default if default in settings else None)

    async def put(
        self, uid: str, name: str, settings: Mapping[str, Any], *, is_default: bool = False
    ) -> None:
        """Replaces another one of this name. Raises `QuotaExceeded` for one too many.

        Two that are put at the same moment may make one more than `MAX_PRESETS`.
        """
        known = await self.of_user(uid)
        if name not in known.settings and len(known.settings) >= MAX_PRESETS:
            raise QuotaExceeded("presets", MAX_PRESETS)
        key = self._keys.user_presets(uid)
        commands: list[Command] = [("HSET", key, name, orjson.dumps(dict(settings)))]
        if is_default:
            commands.append(("HSET", key, _DEFAULT, name))
        await self._client.calls(*commands)
        if not is_default:
            await self._forget_default(uid, name)

    async def remove(self, uid: str, name: str) -> bool:
        """False: there is none of this name."""
        if not name:
            return False
        await self._forget_default(uid, name)
        return bool(await self._client.call("HDEL", self._keys.user_presets(uid), name))

    async def _forget_default(self, uid: str, name: str) -> None:
        """No preset is the default, if that one was; another one of its name is not, either."""
        key = self._keys.user_presets(uid)
        if await self._client.call("HGET", key, _DEFAULT) == name.encode():
            await self._client.call("HDEL", key, _DEFAULT)
