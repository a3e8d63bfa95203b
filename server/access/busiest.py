"""Who asks most of a worker now: a few users and addresses, as its sign of life has them.

Operators add them up over the workers, to find who floods the server.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from server.access.rates import ConnectionCounter

MAX_NAMED = 5  # by each count


class Busiest(msgspec.Struct, frozen=True):
    """By user: connections and answers; by address: connections, and those refused of late."""

    users: dict[str, tuple[int, int]] = {}
    addresses: dict[str, tuple[int, int]] = {}


def busiest(connections: ConnectionCounter, answers: Iterable[str]) -> Busiest:
    """`answers` are named by their users."""
    asked, refused = Counter(answers), connections.refused()
    return Busiest(
        _most(connections.users, asked),
        _most(connections.addresses, refused),
    )


def summed(many: Iterable[Busiest]) -> Busiest:
    """Of several workers; those with few at each of them may be missing."""
    found = Busiest({}, {})
    for one in many:
        for into, counts in ((found.users, one.users), (found.addresses, one.addresses)):
            for name, (first, second) in counts.items():
                known = into.get(name, (0, 0))
                into[name] = known[0] + first, known[1] + second
    return found


def encoded(one: Busiest) -> str:
    """As a figure of a worker."""
    return msgspec.json.encode(one).decode()


def decoded(figure: str | None) -> Busiest:
    """Nobody, of a worker of an older version, or of a newer one that says it otherwise."""
    try:
        return msgspec.json.decode(figure or "{}", type=Busiest)
    except msgspec.MsgspecError:
        return Busiest()


def _most(one: Counter[str], other: Counter[str]) -> dict[str, tuple[int, int]]:
    names = [name for counts in (one, other) for name, _ in counts.most_common(MAX_NAMED)]
    return {name: (one[name], other[name]) for name in dict.fromkeys(names)}
