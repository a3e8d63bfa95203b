"""Who must give way while another user waits: nobody keeps more than half of the engine then.

One cache salt is one user; requests without a salt are nobody's, and are left alone. Priority goes
before fairness: a request gives way to none that is less urgent.
"""

from collections import defaultdict
from collections.abc import Iterable

from engine.sequence import Sequence


def find_excess(
    running: Iterable[Sequence], waiting: Sequence, *, max_num_seqs: int, num_blocks: int
) -> Sequence | None:
    """The latest sequence of another user with more than half of the seats or of the blocks.

    None if nobody has so much, or only one sequence; if it is more urgent than `waiting`, and if
    that is nobody's. `running` is in the order of its sequences' turns.
    """
    if not waiting.cache_salt:
        return None
    others: defaultdict[str, list[Sequence]] = defaultdict(list)
    for sequence in running:
        if sequence.cache_salt not in ("", waiting.cache_salt):
            others[sequence.cache_salt].append(sequence)
    for theirs in others.values():
        blocks = {block for sequence in theirs for block in sequence.block_table}
        share = max(len(theirs) / max_num_seqs, len(blocks) / num_blocks)
        if share > 0.5 and len(theirs) > 1 and _priority(theirs[-1]) >= _priority(waiting):
            return theirs[-1]
    return None


def _priority(sequence: Sequence) -> int:
    return sequence.order[0]  # smaller is more urgent
