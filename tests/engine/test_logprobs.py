import time

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.logprobs import Candidates, FlatLogprobs, Logprob, PromptTokenIdScores, read_candidates
from engine.outputs import CompletionOutput

candidates = st.dictionaries(
    st.integers(0, 99), st.builds(Logprob, st.floats(-9, 0), st.integers(1, 9), st.text(max_size=2))
)


def flat(*positions: dict[int, Logprob]) -> FlatLogprobs:
    result = FlatLogprobs()
    result.extend(positions)
    return result


@given(st.lists(candidates, max_size=5), st.slices(5))
def test_it_reads_like_a_list_of_dicts(positions: list[dict[int, Logprob]], part: slice) -> None:
    result = flat(*positions)
    assert list(result) == positions and len(result) == len(positions)
    assert [result[index] for index in range(len(positions))] == positions
    assert list(result[part]) == positions[part]


def test_candidates_lie_one_after_the_other() -> None:
    result = flat({3: Logprob(-1.0, 1, "a"), 4: Logprob(-2.0, 2, "b")}, {5: Logprob(-3.0, 1, "c")})
    assert (result.start_indices, result.end_indices) == ([0, 2], [2, 3])
    assert (result.token_ids, result.logprobs, result.ranks) == ([3, 4, 5], [-1, -2, -3], [1, 2, 1])
    assert result.decoded_tokens == ["a", "b", "c"]


def test_deltas_join() -> None:
    first = CompletionOutput(0, "a", [1], logprobs=flat({1: Logprob(-1.0)}))
    first.extend(CompletionOutput(0, "b", [2], logprobs=flat({2: Logprob(-2.0)})))
    assert first.logprobs == flat({1: Logprob(-1.0)}, {2: Logprob(-2.0)})


# ---- candidates that are read when they are looked at ----

FEW = [(7, -0.5, 1), (3, -1.5, 2)]
MANY = [(7, -2.0, 3), *((100 + i, -3.0 - i, 4 + i) for i in range(1000))]


def as_sent(entries: list[tuple[int, float, int]]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(entries))


def test_few_candidates_are_a_dict() -> None:
    expected = {7: Logprob(-0.5, 1, "7"), 3: Logprob(-1.5, 2, "3")}
    assert read_candidates(as_sent(FEW), str) == (expected, -0.5)
    assert read_candidates(FEW, str) == (expected, -0.5)


def test_many_candidates_read_like_the_dict_and_decode_what_is_looked_at() -> None:
    decoded: list[int] = []

    def decode(token_id: int) -> str:
        decoded.append(token_id)
        return str(token_id)

    candidates, chosen = read_candidates(as_sent(MANY), decode)
    assert isinstance(candidates, Candidates) and chosen == -2.0
    assert list(candidates)[:2] == [7, 100]
    assert len(candidates) == 1001 and 100 in candidates and 99 not in candidates
    assert candidates.get(99) is None
    assert candidates[100] == Logprob(-3.0, 4, "100")
    assert decoded == [100]
    assert candidates == {token_id: Logprob(p, r, str(token_id)) for token_id, p, r in MANY}


def test_a_whole_vocabulary_takes_no_time_until_it_is_read() -> None:
    sent = as_sent([(i, -1.0, i) for i in range(150_000)])
    times = []
    for _ in range(5):
        started = time.process_time()
        read_candidates(sent, str)
        times.append(time.process_time() - started)
    assert min(times) < 0.02


def test_rows_of_a_prompt_come_in_parts_and_begin_anew() -> None:
    scores, rows = PromptTokenIdScores(3, 2), np.arange(6, dtype=np.float32).reshape(3, 2)
    scores.add(rows[:2].tobytes())
    assert not scores.is_complete and scores.get() is None
    scores.restart()
    scores.add(rows[:1].tobytes())
    scores.add(rows[1:].tobytes())
    found = scores.get()
    assert found is not None and found.dtype == np.float32
    assert (found == rows).all() and scores.get() is found
    nothing = PromptTokenIdScores(0, 2).get()
    assert nothing is not None and nothing.shape == (0, 2)
