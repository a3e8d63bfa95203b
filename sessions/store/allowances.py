"""The store's part for what a user may still have: tokens of the day, and answers at a time.

Tokens are counted when an answer ends, so answers that run already may go a little beyond the
budget of their day. Days are those of Redis' clock, in UTC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from sessions.indexes.indexes import local_ms
from sessions.model.arguments import check_uid
from sessions.model.errors import NoSlot, QuotaExceeded, StoreUnavailable
from sessions.model.ids import is_response_id
from sessions.model.keys import CHARGE_MS, USED_TOKENS_MS
from sessions.model.quotas import Budget, Usage
from sessions.store.context import StoreContext

DAY_MS: Final = 86_400_000
# An owner renews several times within it; one that died leaves its slots for no longer.
SLOT_MS: Final = 30_000


class Budgets:
    """Tokens that users have used, by day."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys

    async def check(self, uid: str) -> Budget | None:
        """The user's tokens of this day (UTC), None where they are unlimited.

        Raises `QuotaExceeded` when they are used up.
        """
        budget = await self.today(uid)
        if budget is not None and not budget.remaining:
            raise QuotaExceeded("tokens per day", budget.limit, retry_after_ms=budget.reset_ms)
        return budget

    async def today(self, uid: str) -> Budget | None:
        """As `check`, whatever is left."""
        check_uid(uid)
        if not self._context.quotas.tokens_per_day:
            return None
        now_ms = await self._client.now_ms()
        key = self._keys.user_tokens_used(uid, _day(now_ms))
        used = int(await self._client.call("HGET", key, "tokens") or 0)
        return Budget(self._context.quotas.tokens_per_day, used, DAY_MS - now_ms % DAY_MS)

    async def usage(self, uids: Sequence[str]) -> list[Usage]:
        """What each of these users keeps and has used today."""
        day = _day(await self._client.now_ms())
        counts, hidden, tokens = await asyncio.gather(
            self._client.read_each([self._keys.user_sessions(uid) for uid in uids], "ZCARD"),
            self._client.read_each([self._keys.user_hidden_sessions(uid) for uid in uids], "ZCARD"),
            self._client.read_each(
                [self._keys.user_tokens_used(uid, day) for uid in uids], "HGET", "tokens"
            ),
        )
        rows = zip(counts, hidden, tokens, strict=True)
        return [Usage(shown + others, int(used or 0)) for shown, others, used in rows]

    async def charge(self, uid: str, response_id: str, num_tokens: int, now_ms: int) -> None:
        """Count an ended response's tokens, once; a count that fails is given up.

        `now_ms` by Redis' clock. A budget that is set later counts what was used before.
        """
        check_uid(uid)
        if not is_response_id(response_id):
            return
        day = self._keys.user_tokens_used(uid, _day(now_ms))
        with contextlib.suppress(StoreUnavailable):  # the answer is stored, and that counts more
            await self._client.script(
                "charge_tokens",
                [day, self._keys.user_charge(uid, response_id)],
                num_tokens=num_tokens,
                day_ms=USED_TOKENS_MS,
                mark_ms=CHARGE_MS,
            )


class Slots:
    """Slots for running answers: how many a user has, over all workers."""

    def __init__(self, context: StoreContext) -> None:
        self._client = context.client
        self._keys = context.keys

    async def take(self, uid: str, response_id: str, limit: int) -> int:
        """Count one more answer of this user; how many there are then. Raises `NoSlot`.

        A slot that is not renewed is free again after half a minute. A repeat changes nothing.
        """
        return await self._slot(uid, response_id, limit)

    async def renew(self, uid: str, response_id: str) -> None:
        """Keep the slot of an answer that still runs, or take it beyond the limit, too."""
        await self._slot(uid, response_id, None)

    async def free(self, uid: str, response_id: str) -> None:
        """The answer has ended."""
        check_uid(uid)
        await self._client.call("ZREM", self._keys.user_slots(uid), response_id)

    async def _slot(self, uid: str, response_id: str, limit: int | None) -> int:
        check_uid(uid)
        reply = await self._client.script(
            "take_slot",
            [self._keys.user_slots(uid)],
            response_id=response_id,
            limit=limit,
            life_ms=SLOT_MS,
        )
        if reply[0] == b"full":
            raise NoSlot(reply[1])
        return int(reply[1])


def _day(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d")


def days_kept() -> list[str]:
    """The days whose counts may still be there, by this machine's clock, with one to spare."""
    now_ms = local_ms() + DAY_MS
    return [_day(now_ms - DAY_MS * ago) for ago in range(USED_TOKENS_MS // DAY_MS + 3)]
