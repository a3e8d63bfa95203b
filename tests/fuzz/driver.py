"""The loop of a fuzz target on sockets: attack, look at a bystander, measure the event loop."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable

from tests.fuzz.loop_stalls import LoopStalls
from tests.fuzz.site import Site, serving

STALL_SECONDS = 0.1
AT_ONCE = 8
SHOWN_BYTES = 2000


class Finding(AssertionError):
    """What went wrong, and what was sent."""

    def __init__(self, what: str, sent: bytes) -> None:
        super().__init__(f"{what}; sent {len(sent)} bytes: {sent[:SHOWN_BYTES]!r}")


Prepare = Callable[[Site, random.Random], bytes]  # what one attacker sends
Attack = Callable[[Site, random.Random, bytes], Awaitable[None]]
Bystander = Callable[[Site], Awaitable[None]]


def drive(
    name: str, prepare: Prepare, attack: Attack, bystand: Bystander, seconds: float, seed: int
) -> str:
    """Attack for so long, eight at a time. Raises AssertionError with the seed of the round."""
    gc.disable()
    try:
        num, worst_ms = asyncio.run(_drive(name, prepare, attack, bystand, seconds, seed))
    finally:
        gc.enable()
    return f"{name}: {num} attacks from seed {seed}, longest callback {worst_ms:.0f} ms"


async def _drive(
    name: str, prepare: Prepare, attack: Attack, bystand: Bystander, seconds: float, seed: int
) -> tuple[int, float]:
    end = time.monotonic() + seconds
    number, worst = 0, 0.0
    with serving() as site:
        while number == 0 or time.monotonic() < end:
            of_round = f"{name}, round {number}, seed {seed}"
            rngs = [random.Random(f"{seed}/{number + n}") for n in range(AT_ONCE)]
            said = [prepare(site, rng) for rng in rngs]  # that takes a while, and is not measured
            gc.collect()  # here, and not in the server's time: most of it is the attackers'
            with LoopStalls(site.thread) as stalls:
                attacks = [attack(site, rng, sent) for rng, sent in zip(rngs, said, strict=True)]
                try:
                    await asyncio.gather(*attacks, bystand(site))
                except Finding as finding:
                    raise AssertionError(f"{of_round}: {finding}") from None
            worst = max(worst, stalls.worst_seconds)
            assert stalls.worst_seconds < STALL_SECONDS, (
                f"{of_round}: {stalls.worst_seconds * 1000:.0f} ms in {stalls.worst}"
            )
            assert not site.errors, f"{of_round}: {site.errors[0]}"
            number += AT_ONCE
    return number, worst * 1000
