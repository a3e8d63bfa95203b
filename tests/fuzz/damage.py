"""What happens to bytes on their way: damage, and cuts into segments."""

from __future__ import annotations

import random


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes as they are, or with some flipped, left out, repeated, put in, or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 3, 20))):
        if not changed:
            break
        start = rng.randrange(len(changed))
        end = min(len(changed), start + rng.choice((1, 1, 2, 10, 1000)))
        match rng.randrange(5):
            case 0:
                changed[start] ^= 1 << rng.randrange(8)
            case 1:
                del changed[start:end]
            case 2:
                changed[start:start] = changed[start:end] * rng.choice((1, 3))
            case 3:
                odd = (b"\0", b"\r", b"\n", b"\r\n", b"\xff" * 9, b":", b" ", rng.randbytes(5))
                changed[start:start] = rng.choice(odd)
            case 4:
                del changed[start:]
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes in one segment or in many; small ones only of their beginning."""
    if rng.random() < 0.5:
        return [data]
    pieces: list[bytes] = []
    place = 0
    size = rng.choice((1, 3, 100, 4096))
    while place < len(data) and len(pieces) < 200:
        step = rng.randint(1, size)
        pieces.append(data[place : place + step])
        place += step
    return [*pieces, data[place:]]
