"""The store's half for budgets: the tokens that a user has used today.

They are counted when an answer ends, so answers that run already may go a little beyond the budget
of their day. Days are those of Redis' clock, in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sessions.arguments import check_uid
from sessions.base import StoreBase
from sessions.errors import QuotaExceeded, StoreUnavailable
from sessions.indexes import local_ms
from sessions.keys import CHARGE_MS, USED_TOKENS_MS
from sessions.records import is_response_id

DAY_MS: Final = 86_400_000


class Budgets(StoreBase):
    """Tokens that users have used, by day. `SessionStore` has these methods; see there."""

    async def check_budget(self, uid: str) -> None:
        """Raises `QuotaExceeded` when the user's tokens of this day (UTC) are used up."""
        if not self._quotas.tokens_per_day:
            return
        now_ms = await self._redis_ms()
        if await self._tokens_used(uid, now_ms) >= self._quotas.tokens_per_day:
            limit = self._quotas.tokens_per_day
            raise QuotaExceeded("tokens per day", limit, retry_after_ms=DAY_MS - now_ms % DAY_MS)

    async def tokens_used(self, uid: str) -> int:
        """The tokens that a user has used today (UTC)."""
        return await self._tokens_used(uid, await self._redis_ms())

    async def charge_tokens(self, uid: str, response_id: str, num_tokens: int) -> None:
        """Count an ended response's tokens, once; a count that fails is given up."""
        check_uid(uid)
        if not self._quotas.tokens_per_day or not is_response_id(response_id):
            return
        try:
            now_ms = await self._redis_ms()
            await self.client.script(
                "charge_tokens",
                [
                    self.keys.user_tokens_used(uid, _day(now_ms)),
                    self.keys.user_charge(uid, response_id),
                ],
                (num_tokens, USED_TOKENS_MS, CHARGE_MS),
            )
        except StoreUnavailable:
            return  # the answer is stored, and that counts more

    async def _tokens_used(self, uid: str, now_ms: int) -> int:
        check_uid(uid)
        key = self.keys.user_tokens_used(uid, _day(now_ms))
        return int(await self.client.call("HGET", key, "tokens") or 0)

    async def _redis_ms(self) -> int:
        """Redis' clock: a worker whose own is wrong must not open another day."""
        seconds, microseconds = await self.client.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000


def _day(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d")


def days_kept() -> list[str]:
    """The days whose counts may still be there, by this machine's clock, with one to spare."""
    now_ms = local_ms() + DAY_MS
    return [_day(now_ms - DAY_MS * ago) for ago in range(USED_TOKENS_MS // DAY_MS + 3)]
