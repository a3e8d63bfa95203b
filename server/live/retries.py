"""`until_done`: what must reach the store is tried again for as long as the store is away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from server.config.intervals import STORE_RETRY_SECONDS
from sessions.model.errors import StoreUnavailable

T = TypeVar("T")


async def until_done(
    attempt: Callable[[], Awaitable[T]], while_wanted: Callable[[], bool] = lambda: True
) -> T | None:
    """What the first attempt returns that the store answers; None once nobody wants it any more.

    Raises what an attempt raises, but for `StoreUnavailable`.
    """
    while while_wanted():
        try:
            return await attempt()
        except StoreUnavailable:
            await asyncio.sleep(STORE_RETRY_SECONDS)
    return None
