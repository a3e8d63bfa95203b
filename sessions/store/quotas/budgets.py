"""The store's part for tokens of the day: what users have used, and what groups hold and have used.

A user's tokens are counted when an answer ends, so answers that run already may go a little beyond
the budget of their day. A group's are held before an answer begins, as many as it may use, and what
it has not used is given back at its end: so answers of many workers at once never go beyond it. An
answer counts in the day in which it was held. Days are those of Redis' clock, in UTC.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from sessions.connection.client import ScriptRun
from sessions.indexes.indexes import local_ms
from sessions.model.arguments import check_uid
from sessions.model.codec import decode_body
from sessions.model.errors import QuotaExceeded, StoreUnavailable
from sessions.model.ids import is_response_id, session_of
from sessions.model.keys import CHARGE_MS, USED_TOKENS_MS
from sessions.model.quotas import GROUP_TOKENS, Allowance, Budget, GroupUsage, Usage
from sessions.model.records import LIVE_STATUSES
from sessions.store.context import StoreContext
from sessions.store.quotas.allowances import Allowances

DAY_MS: Final = 86_400_000
# So long it may take until an answer that was given its tokens has begun, or taken its slot again.
HELD_MS: Final = 60_000
HELD_RETRY_MS: Final = 5000  # for one who finds that running answers hold what is left
MAX_LOOKED_AT: Final = 200  # held answers, of which some may have ended without a word
LOOK_SECONDS: Final = 5.0  # between two such looks at one group


class Budgets:
    """Tokens that users and groups have used, by day."""

    def __init__(self, context: StoreContext, allowances: Allowances) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys
        self._allowances = allowances
        self._looked: dict[str, float] = {}

    # ---- what is left ----------------------------------------------------------------------------

    async def check(self, uid: str) -> Budget | None:
        """The tokens of this day (UTC), the user's or their group's, whichever has less left.

        None where they are unlimited. Raises `QuotaExceeded` when they are used up.
        """
        budget = await self.today(uid)
        if budget is not None and not budget.remaining:
            raise _exceeded(budget)
        return budget

    async def today(self, uid: str) -> Budget | None:
        """As `check`, but it refuses nothing."""
        check_uid(uid)
        allowance = await self._allowances.of(uid)
        own = self._limit(allowance)
        shared = allowance.shared.tokens_per_day if allowance.group is not None else 0
        if not own and not shared:
            return None
        day = _day(local_ms())  # most often Redis' clock says the same, and one call tells all
        while True:
            now_ms, used, (shared_used, held) = await asyncio.gather(
                self._client.now_ms(),
                self._client.call("HGET", self._keys.user_tokens_used(uid, day), "tokens"),
                self._of_group(allowance.group, day),
            )
            if day == _day(now_ms):
                break
            day = _day(now_ms)
        budgets, reset_ms = [], DAY_MS - now_ms % DAY_MS
        own_left = None
        if own:
            own_left = max(0, own - int(used or 0))
            budgets.append(Budget(own, int(used or 0), reset_ms))
        if shared:
            budgets.append(Budget(shared, shared_used, reset_ms, held, GROUP_TOKENS, own_left))
        return min(budgets, key=lambda budget: budget.remaining)

    def _limit(self, allowance: Allowance) -> int:
        own = allowance.own.tokens_per_day
        return self._context.quotas.tokens_per_day if own is None else own

    async def _of_group(self, gid: str | None, day: str) -> tuple[int, int]:
        if gid is None:
            return 0, 0
        used, held = await self._client.call(
            "HMGET", self._keys.group_tokens(gid), f"t:{day}", f"h:{day}"
        )
        return int(used or 0), int(held or 0)

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

    async def group_usage(self, gids: Sequence[str]) -> list[GroupUsage]:
        """What each of these groups keeps, has used today, and holds for answers that run."""
        day = _day(await self._client.now_ms())
        members, sessions, tokens = await asyncio.gather(
            self._client.read_each([self._keys.group_members(gid) for gid in gids], "ZCARD"),
            self._client.read_each([self._keys.group_sessions(gid) for gid in gids], "ZCARD"),
            self._client.read_each(
                [self._keys.group_tokens(gid) for gid in gids], "HMGET", f"t:{day}", f"h:{day}"
            ),
        )
        rows = zip(members, sessions, tokens, strict=True)
        return [
            GroupUsage(num_members, num_sessions, int(used or 0), int(held or 0))
            for num_members, num_sessions, (used, held) in rows
        ]

    # ---- what a group holds for an answer --------------------------------------------------------

    async def hold(self, group: str, response_id: str, *, wanted: int, least: int) -> int:
        """Hold so many tokens of the group's day for an answer, or what is left of them.

        Raises `QuotaExceeded` when not even `least` are left. The worker that takes the
        answer over finds what is held for it. `settle` gives back what was not used.
        """
        quotas = await self._allowances.of_group(group)
        if quotas is None:  # it was removed, and with it all that it counts
            return wanted
        limit = quotas.tokens_per_day
        now_ms = await self._client.now_ms()
        for is_last_try in (False, True):
            reply = await self._client.script(
                "hold_tokens",
                [self._keys.group_tokens(group), self._keys.group_record(group)],
                response_id=response_id,
                day=_day(now_ms),
                wanted=max(wanted, least),
                least=least,
                limit=limit,
            )
            if reply[0] == b"ok":
                return int(reply[1])
            if reply[0] == b"gone":
                return wanted
            if is_last_try or not reply[2] or not await self._settle_ended(group, now_ms):
                break
        reset_ms = DAY_MS - now_ms % DAY_MS
        raise _exceeded(Budget(limit, reply[1], reset_ms, reply[2], GROUP_TOKENS))

    async def settle(self, group: str, response_id: str, num_tokens: int) -> None:
        """Count what an answer has used, once; the rest of what was held for it is free."""
        await self._client.calls(self._settling(group, response_id, num_tokens))

    def _settling(self, group: str, response_id: str, num_tokens: int) -> ScriptRun:
        return self._client.script_run(
            "settle_tokens",
            [self._keys.group_tokens(group)],
            response_id=response_id,
            num_tokens=num_tokens,
            oldest=days_kept()[-1],
        )

    async def _settle_ended(self, group: str, now_ms: int) -> bool:
        """Settle for answers that have ended, and nobody has said so; whether there was one.

        Their worker has died in that moment, or is of an older version, which knows no groups.
        """
        now = time.monotonic()
        if now - self._looked.get(group, -LOOK_SECONDS) < LOOK_SECONDS:
            return False
        self._looked[group] = now
        stored = await self._client.call("HGETALL", self._keys.group_tokens(group))
        held = {
            name.decode()[2:]: tuple(map(int, value.split()[1:]))
            for name, value in stored.items()
            if name.startswith(b"r:")
        }
        old = [rid for rid, (_, since) in held.items() if since < now_ms - HELD_MS][:MAX_LOOKED_AT]
        slots = self._keys.group_slots(group)
        expiries = await self._client.calls(*(("ZSCORE", slots, rid) for rid in old))
        silent = [
            rid
            for rid, expires_at in zip(old, expiries, strict=True)
            if expires_at is None or float(expires_at) < now_ms
        ]
        used = await asyncio.gather(*map(self._used_by, silent))
        for rid, num_tokens in zip(silent, used, strict=True):
            if num_tokens is not None:  # of what is gone nobody knows: all that it might have used
                await self.settle(group, rid, held[rid][0] if num_tokens < 0 else num_tokens)
        return any(num_tokens is not None for num_tokens in used)

    async def _used_by(self, response_id: str) -> int | None:
        """What an answer has used in all; None while it runs, -1 where that is not known."""
        session_id = session_of(response_id)
        run, body = self._keys.run(session_id, response_id), None
        status, message_id = await self._client.call("HMGET", run, "status", "message_id")
        if status is not None and status.decode() in LIVE_STATUSES:
            return None
        if message_id is not None:
            body = await self._client.call(
                "HGET", self._keys.session(session_id, "msg"), message_id
            )
        usage = None if body is None else decode_body(body).usage
        if usage is None:
            return -1
        return int(usage.get("input_tokens", 0)) + int(usage.get("output_tokens", 0))

    # ---- what was used ---------------------------------------------------------------------------

    async def charge(
        self,
        uid: str,
        response_id: str,
        num_tokens: int,
        now_ms: int,
        *,
        group: str | None = None,
    ) -> None:
        """Count an ended response's tokens, once; a count that fails is given up.

        The answer's end goes out meanwhile, except in a cluster. `now_ms` by
        Redis' clock. A budget that is set later counts what was used before. `group` is the one
        that has held tokens for it: there they stay held until somebody looks.
        """
        check_uid(uid)
        if not is_response_id(response_id):
            return
        counts = [
            self._client.script_run(
                "charge_tokens",
                [
                    self._keys.user_tokens_used(uid, _day(now_ms)),
                    self._keys.user_charge(uid, response_id),
                ],
                num_tokens=num_tokens,
                day_ms=USED_TOKENS_MS,
                mark_ms=CHARGE_MS,
            )
        ]
        if group is not None:
            counts.append(self._settling(group, response_id, num_tokens))
        with contextlib.suppress(StoreUnavailable):  # the answer is stored, and that counts more
            await self._client.send(*counts)


def _exceeded(budget: Budget) -> QuotaExceeded:
    """The refusal of one more answer."""
    is_shared = budget.quota == GROUP_TOKENS
    is_held = is_shared and budget.used < budget.limit
    return QuotaExceeded(
        "tokens per day of the group" if is_shared else "tokens per day",
        budget.limit,
        retry_after_ms=min(HELD_RETRY_MS, budget.reset_ms) if is_held else budget.reset_ms,
        quota=budget.quota,
    )


def _day(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d")


def days_kept() -> list[str]:
    """The days whose counts may still be there, by this machine's clock, with one to spare."""
    now_ms = local_ms() + DAY_MS
    return [_day(now_ms - DAY_MS * ago) for ago in range(USED_TOKENS_MS // DAY_MS + 3)]
