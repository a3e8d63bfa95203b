"""`Placement`: which of several engines an answer goes to.

A session's answers go where its last one was, because that engine has its keys and values. A
session that nobody here knows goes to its own engine, on which all workers agree, unless that has
more than its share of sessions by now. Where the engine of a session is full, the answer spills
over to the one with the least to do, and so does what belongs to no session.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

from server.engines.placement.member import Member
from server.engines.placement.rendezvous import score, stamp

MAX_SESSIONS = 20_000  # that are remembered; those that were asked longest ago are forgotten
MAX_SHARE = 1.1  # of what is an engine's by its weight; sessions beyond it go to others


class Placement:
    """Of one worker."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, Member] = OrderedDict()

    def choose(self, session_id: str | None, members: Sequence[Member]) -> Member | None:
        """The engine for an answer, of those that take new ones; None where none does."""
        open_ones = [member for member in members if member.takes_new]
        if not open_ones:
            return None
        free = [member for member in open_ones if not member.is_full]
        if session_id is None:
            return _least_loaded(free or open_ones)
        known = self._places.get(session_id)
        if known not in open_ones:
            chosen = self._own(session_id, free) if free else _least_loaded(open_ones)
        elif known in free or not free:
            chosen = known
        else:
            chosen = _least_loaded(free)
        self._remember(session_id, chosen)
        return chosen

    def place_of(self, session_id: str) -> Member | None:
        """Where its last answer went, if it is remembered."""
        return self._places.get(session_id)

    def know(self, session_id: str, member: Member) -> None:
        """Its last answer was written there, by another worker."""
        self._remember(session_id, member)

    def forget(self, member: Member) -> None:
        """It is no engine any more."""
        for session_id in [each for each, there in self._places.items() if there is member]:
            del self._places[session_id]
        member.num_sessions = 0

    def _own(self, session_id: str, members: Sequence[Member]) -> Member:
        """The session's own engine, or the next one that has not its share of sessions yet."""
        if len(members) == 1:
            return members[0]
        number = stamp(session_id)
        ranked = sorted(
            members,
            key=lambda member: score(number, member.stamp, member.status.weight),
            reverse=True,
        )
        total = 1 + sum(member.num_sessions for member in members)
        weights = sum(member.status.weight for member in members)
        for member in ranked:
            share = total * member.status.weight / weights
            if member.num_sessions < math.ceil(MAX_SHARE * share):
                return member
        return ranked[0]

    def _remember(self, session_id: str, member: Member) -> None:
        before = self._places.pop(session_id, None)
        if before is not None:
            before.num_sessions -= 1
        elif len(self._places) >= MAX_SESSIONS:
            _, oldest = self._places.popitem(last=False)
            oldest.num_sessions -= 1
        self._places[session_id] = member
        member.num_sessions += 1


def _least_loaded(members: Sequence[Member]) -> Member:
    return min(members, key=lambda member: member.load)
