"""What each user has of the engine, whose turn is next, and who gives way to whom.

One cache salt is one user. All requests without a salt are one more user, who gives way to nobody
and to whom nobody gives way. Priority goes before fairness: no request gives way to a less urgent
one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from engine.core.scheduling.sequence import Sequence


def by_user(sequences: Iterable[Sequence]) -> dict[str, list[Sequence]]:
    """The sequences of each user, in the order in which they come."""
    lines: defaultdict[str, list[Sequence]] = defaultdict(list)
    for sequence in sequences:
        lines[sequence.cache_salt].append(sequence)
    return dict(lines)


def held_by(running: Iterable[Sequence], *, max_num_seqs: int, num_blocks: int) -> dict[str, float]:
    """What each user holds, in seats: a share of the blocks counts as that share of the seats."""
    return {
        user: max(len(line), max_num_seqs * _num_blocks(line) / num_blocks)
        for user, line in by_user(running).items()
    }


def take_turns(lines: Mapping[str, list[Sequence]]) -> list[Sequence]:
    """The first of each user, then the second of each; the most urgent before all others."""
    places = [
        ((_priority(sequence), number, sequence.order), sequence)
        for line in lines.values()
        for number, sequence in enumerate(line)
    ]
    return [sequence for _, sequence in sorted(places, key=lambda place: place[0])]


def find_least_to_read(lines: Mapping[str, list[Sequence]]) -> list[Sequence]:
    """The prompts of the user with the fewest tokens to read, among the most urgent ones."""
    priority = min(_priority(line[0]) for line in lines.values())
    return min(
        (line for line in lines.values() if _priority(line[0]) == priority),
        key=lambda line: sum(sequence.num_uncomputed_tokens for sequence in line),
    )


def find_majority(seated: Iterable[Sequence], prompts: Iterable[Sequence]) -> str | None:
    """The user with more than half of what runs or may be admitted, if others have prompts to be
    read that are as urgent.
    """
    lines = by_user(seated)
    user, theirs = max(lines.items(), key=lambda item: len(item[1]), default=("", []))
    if not user or 2 * len(theirs) <= sum(map(len, lines.values())) or len(theirs) < 2:
        return None
    priority = _priority(theirs[0])
    others = (it for it in prompts if it.cache_salt != user)
    return user if any(_priority(it) <= priority for it in others) else None


def choose_for_step(ready: list[Sequence], num_rows: int) -> list[Sequence]:
    """As many as a step computes, in the order of `ready`: each user's longest unserved first."""
    if len(ready) <= num_rows:
        return ready
    lines = by_user(sorted(ready, key=_last_served))
    places = [
        ((_priority(sequence), number, _last_served(sequence)), sequence)
        for line in lines.values()
        for number, sequence in enumerate(line)
    ]
    places.sort(key=lambda place: place[0])
    chosen = {sequence for _, sequence in places[:num_rows]}
    return [sequence for sequence in ready if sequence in chosen]


def find_of_most_seats(
    running: Iterable[Sequence], waiting: Sequence, num_more: int
) -> Sequence | None:
    """The latest of the user with the most seats, who must have two more than this one has.

    So afterwards nobody has fewer than the user who got the seat. `num_more` of the same user as
    `waiting` will get seats before it.
    """
    if not waiting.cache_salt:
        return None
    lines = by_user(running)
    of_waiting = num_more + len(lines.pop(waiting.cache_salt, []))
    lines.pop("", None)
    theirs = max(lines.values(), key=len, default=[])
    if len(theirs) < of_waiting + 2 or _priority(theirs[-1]) < _priority(waiting):
        return None
    return theirs[-1]


def find_of_most_blocks(
    running: Iterable[Sequence], waiting: Sequence, num_blocks: int
) -> Sequence | None:
    """The latest of another user who has more than half of the blocks, and two sequences."""
    if not waiting.cache_salt:
        return None
    for user, theirs in by_user(running).items():
        if user in ("", waiting.cache_salt) or len(theirs) < 2:
            continue
        if 2 * _num_blocks(theirs) > num_blocks and _priority(theirs[-1]) >= _priority(waiting):
            return theirs[-1]
    return None


def find_latest_of_largest(running: list[Sequence]) -> Sequence:
    """Who gives up blocks that decodes need: the latest of the user with the most of them.

    Only among the least urgent; never the first that runs, and there must be another.
    """
    last = running[-1]
    least_urgent = [it for it in running[1:] if _priority(it) == _priority(last)]
    lines = by_user(least_urgent)
    return last if len(lines) == 1 else max(lines.values(), key=_num_blocks)[-1]


def _num_blocks(sequences: Iterable[Sequence]) -> int:
    """Shared ones count once."""
    return len({block for sequence in sequences for block in sequence.block_table})


def _last_served(sequence: Sequence) -> int:
    return sequence.last_served


def _priority(sequence: Sequence) -> int:
    return sequence.order[0]  # smaller is more urgent
