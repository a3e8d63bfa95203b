"""The loop of a fuzz target on sockets: attack, look at a bystander, measure the event loop."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tests.fuzz.loop_stalls import LoopStalls

STALL_SECONDS = 0.1
AT_ONCE = 8
SHOWN_BYTES = 2000


class Finding(AssertionError):
    """What went wrong, and what was sent."""

    def __init__(self, what: str, sent: bytes) -> None:
        super().__init__(f"{what}; sent {len(sent)} bytes: {sent[:SHOWN_BYTES]!r}")


class Attacked(Protocol):
    """What runs in a thread of its own, and what went wrong in it that nobody hears of."""

    @property
    def thread(self) -> threading.Thread: ...
    @property
    def errors(self) -> list[str]: ...


S = TypeVar("S", bound=Attacked)
Serving = Callable[[], AbstractContextManager[S]]
Prepare = Callable[[S, random.Random], bytes]  # what one attacker sends
Attack = Callable[[S, random.Random, bytes], Awaitable[None]]
Bystander = Callable[[S], Awaitable[None]]


@dataclass(frozen=True)
class Target(Generic[S]):
    """What is attacked, what is sent, how, and who must not notice.

    `patiently` serves with long deadlines, where those of `serving` are short. On a busy machine a
    short one may fall due before a client has had its turn, which looks like a finding. So a round
    with one is gone through again with patience.
    """

    name: str
    serving: Serving[S]
    prepare: Prepare[S]
    attack: Attack[S]
    bystand: Bystander[S]
    patiently: Serving[S] | None = None

    async def round(self, site: S, seed: int, number: int) -> float:
        """Eight attacks at once; how long a callback took, in seconds.

        Raises `Finding`, and AssertionError for what is wrong whenever it happens.
        """
        rngs = [random.Random(f"{seed}/{number + n}") for n in range(AT_ONCE)]
        said = [self.prepare(site, rng) for rng in rngs]  # that takes a while, and is not measured
        gc.collect()  # here, and not in the server's time: most of it is the attackers'
        with LoopStalls(site.thread) as stalls:
            attacks = [self.attack(site, rng, sent) for rng, sent in zip(rngs, said, strict=True)]
            await asyncio.gather(*attacks, self.bystand(site))
        assert stalls.worst_seconds < STALL_SECONDS, (
            f"{stalls.worst_seconds * 1000:.0f} ms in {stalls.worst}"
        )
        assert not site.errors, site.errors[0]
        return stalls.worst_seconds


def drive(target: Target[S], seconds: float, seed: int) -> str:
    """Attack for so long, eight at a time. Raises AssertionError with the seed of the round."""
    gc.disable()
    try:
        return asyncio.run(_drive(target, seconds, seed))
    finally:
        gc.enable()


async def _drive(target: Target[S], seconds: float, seed: int) -> str:
    end = time.monotonic() + seconds
    number, num_repeated, worst = 0, 0, 0.0
    with target.serving() as site:
        while number == 0 or time.monotonic() < end:
            try:
                try:
                    worst = max(worst, await target.round(site, seed, number))
                except Finding:
                    if target.patiently is None:
                        raise
                    num_repeated += 1
                    with target.patiently() as patient_site:
                        await target.round(patient_site, seed, number)
            except AssertionError as error:
                raise AssertionError(
                    f"{target.name}, round {number}, seed {seed}: {error}"
                ) from None
            number += AT_ONCE
    return (
        f"{target.name}: {number} attacks from seed {seed}, "
        f"longest callback {worst * 1000:.0f} ms, "
        f"{num_repeated} rounds repeated with patience"
    )
