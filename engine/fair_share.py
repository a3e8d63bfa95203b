"""Who must give way while another user waits: nobody keeps more than half of the engine then.

One cache salt is one user; requests without a salt are nobody's, and are left alone.
"""

from collections import defaultdict
from collections.abc import Iterable

from engine.sequence import Sequence


def find_excess(
    running: Iterable[Sequence], waiting: Sequence, *, max_num_seqs: int, num_blocks: int
) -> Sequence | None:
    """The latest sequence of another user with more than half of the seats or of the blocks.

    None if nobody has so much, or only one sequence; and if `waiting` is nobody's. `running` is in
    the order of its sequences' turns.
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
        if share > 0.5 and len(theirs) > 1:
            return theirs[-1]
    return None
