from hypothesis import given
from hypothesis import strategies as st

from engine.logprobs import FlatLogprobs, Logprob
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
