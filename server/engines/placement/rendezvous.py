"""Which of several engines is a session's own, so that all who ask agree without a word.

Each pair of session and engine has a number, and the highest one counts: when an engine comes or
goes, only the sessions move that come to it, or that were its own.
"""

import math
from hashlib import blake2b

BITS = 64
MASK = (1 << BITS) - 1


def stamp(name: str) -> int:
    """A number for a session, or for an engine, the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=BITS // 8).digest())


def score(session: int, engine: int, weight: float) -> float:
    """The higher, the sooner it is this session's engine; an engine has sessions by its weight."""
    mixed = (session ^ engine) * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & MASK
    mixed ^= mixed >> 32
    return -weight / math.log((mixed + 0.5) / (1 << BITS))
