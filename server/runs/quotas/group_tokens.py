"""The tokens that a user's group holds for an answer, from before it begins until its end."""

import contextlib

from server.runs.run import Run
from server.runs.state import End
from server.runs.waiting import store_retry
from sessions.model.errors import QuotaExceeded, StoreUnavailable
from sessions.store.quotas.budgets import Budgets


async def hold_tokens(
    budgets: Budgets, group: str, response_id: str, num_prompt: int, max_tokens: int
) -> int:
    """Hold what an answer may use at most, or what is left of it; so many tokens.

    Raises `QuotaExceeded` when not even one is left beside its prompt.
    """
    wanted, least = num_prompt + max_tokens, num_prompt + 1
    return await budgets.hold(group, response_id, wanted=wanted, least=least)


async def hold_for_run(
    budgets: Budgets, run: Run, group: str, num_prompt: int, max_tokens: int
) -> End | None:
    """The same for an answer that was promised; how it ends if nothing is left.

    What another worker had the group hold for it is found again. It waits for a store that is
    away, until somebody stops it: others must not use the same tokens.
    """
    while (run.tokens_held or 0) < num_prompt + max_tokens:
        if run.stopping is not None:
            return run.end("abort", None, "released")
        try:
            run.tokens_held = await hold_tokens(
                budgets, group, run.response_id, num_prompt, max_tokens
            )
            break
        except QuotaExceeded:
            return End("incomplete", "quota", "released")
        except StoreUnavailable:
            await store_retry(run)
    return None


async def give_back(budgets: Budgets, group: str, response_id: str) -> None:
    """An answer never began: nothing is held for it any more."""
    with contextlib.suppress(StoreUnavailable):  # then it is found when too little is left
        await budgets.settle(group, response_id, 0)
