"""Which token a random number picks, and that the built op picks it as the reference does."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.ops import library as ops
from engine.core.ops.sampling_reference import ChooseTokens, choose_truncated
from tests.helpers import cuda_kernels
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.cuda_kernels import needs_cuda_kernels, with_cuda_kernels

VOCAB = 50
IMPLEMENTATIONS = ["torch", *(["cpu"] if ops.load_library() else [])]
WITH_CUDA = [*IMPLEMENTATIONS, pytest.param("cuda", marks=with_cuda_kernels)]
IMPLEMENTATIONS += ["cuda"] if cuda_kernels.load() else []
CUTS: list[dict[str, Any]] = [
    {},
    {"min_p": 0.1},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 300},
    {"top_p": 0.0},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"top_k": 20, "top_p": 0.7},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.0},
]


def op_of(implementation: str) -> ChooseTokens:
    if implementation == "cuda":
        emulated: ChooseTokens = torch.ops.parley_cuda.choose_tokens
        return emulated
    return ops.choose(implementation).choose_tokens


class Rows:
    """The arguments of the op: the same parameters for every row, random numbers for each."""

    def __init__(
        self,
        logits: Tensor,
        *,
        temperature: float = 1.0,
        min_p: float = 0.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        uniform: float | None = None,
    ) -> None:
        num_rows, vocab = logits.shape

        def column(value: float) -> Tensor:
            return torch.full((num_rows,), value, dtype=torch.float64)

        self.logits = logits
        self.temperatures, self.min_p, self.top_p = map(column, (temperature, min_p, top_p))
        self.top_k = torch.full((num_rows,), min(top_k or vocab, vocab))
        generator = torch.Generator().manual_seed(1)
        self.uniforms = torch.rand(num_rows, dtype=torch.float64, generator=generator)
        if uniform is not None:
            self.uniforms = column(uniform)

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        probabilities = (self.min_p, self.top_p)
        return (self.logits, self.temperatures, *probabilities, self.top_k, self.uniforms)

    def choose(self, implementation: str) -> list[int]:
        tokens = torch.full((len(self.logits),), -2)
        op_of(implementation)(*self.arguments(), tokens)
        chosen: list[int] = tokens.tolist()
        return chosen


def random_logits(num_rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(0)) * spread


def distance_to_its_share(rows: Rows, row: int, token: int) -> float:
    """How far the row's random number lies outside of the token's share of what may come.

    In the plainest way: in float64, with everything sorted.
    """
    logits = rows.logits[row].double()
    weights = ((logits - logits.max()) / rows.temperatures[row]).exp()
    weights[weights < rows.min_p[row]] = 0
    is_cut = bool(rows.top_k[row] < len(weights) or rows.top_p[row] < 1)
    order = weights.argsort(descending=True, stable=True) if is_cut else torch.arange(len(weights))
    kept = weights[order]
    kept[int(rows.top_k[row]) :] = 0
    before = kept.cumsum(0) - kept
    kept[(before >= rows.top_p[row] * kept.sum()) & (torch.arange(len(kept)) > 0)] = 0
    shares = kept.cumsum(0) / kept.sum()
    place = int((order == token).nonzero())
    low = float(shares[place - 1]) if place else 0.0
    uniform = float(rows.uniforms[row])
    return max(low - uniform, uniform - float(shares[place]), 0.0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("vocab", [1, 2, 17, VOCAB, 512, 1300])
def test_the_number_lies_in_the_share_of_the_token(
    implementation: str, cut: dict[str, Any], vocab: int
) -> None:
    rows = Rows(random_logits(40, vocab), **cut)
    chosen = rows.choose(implementation)
    if cut.get("temperature") == 0:
        assert chosen == rows.logits.argmax(-1).tolist()
        return
    for row, token in enumerate(chosen):
        assert distance_to_its_share(rows, row, token) < 1e-6


@pytest.mark.parametrize("implementation", WITH_CUDA)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-48])
def test_the_ends_of_the_range_choose_tokens_that_may_come(
    implementation: str, cut: dict[str, Any], uniform: float
) -> None:
    logits = random_logits(8, 700, spread=30.0)  # most of the weights are zero
    logits[:, ::3] = -torch.inf
    rows = Rows(logits, uniform=uniform, **cut)
    for row, token in enumerate(rows.choose(implementation)):
        assert float((logits[row, token] - logits[row].max()).exp()) > 0
        if cut.get("temperature") != 0:
            assert distance_to_its_share(rows, row, token) < 1e-6


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("cut", [{"top_k": 2000}, {"top_p": 0.9}, {"top_p": 0.5, "top_k": 1900}])
def test_many_tokens_that_are_nearly_alike_have_shares_too(
    implementation: str, cut: dict[str, Any]
) -> None:
    rows = Rows(random_logits(6, 2501, spread=0.01), **cut)
    for row, token in enumerate(rows.choose(implementation)):
        assert distance_to_its_share(rows, row, token) < 1e-6


@pytest.mark.parametrize("implementation", WITH_CUDA)
@pytest.mark.parametrize("top_k", [1, 3, 600])
def test_of_equal_tokens_any_number_is_kept_exactly(implementation: str, top_k: int) -> None:
    logits = torch.zeros(200, 600)
    seen = set(Rows(logits, top_k=top_k).choose(implementation))
    assert len(seen) <= top_k
    assert len(seen) > min(top_k, 100) // 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"temperature": 0.0}], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_a_finite_maximum_has_no_token(
    implementation: str, cut: dict[str, Any], value: float
) -> None:
    logits = random_logits(3, 130)
    logits[1, 128] = value
    if value == -torch.inf:
        logits[1] = value
    tokens = Rows(logits, **cut).choose(implementation)
    assert [token >= 0 for token in tokens] == [True, False, True]


@pytest.mark.parametrize("implementation", WITH_CUDA)
def test_a_row_chooses_alike_alone_and_among_others(implementation: str) -> None:
    logits = random_logits(33, 3000)
    for cut in CUTS:
        rows = Rows(logits, **cut)
        together = rows.choose(implementation)
        alone = Rows(logits[5:6], **cut)
        alone.uniforms = rows.uniforms[5:6].clone()
        assert alone.choose(implementation) == together[5:6]


@needs_kernels
def test_opcheck() -> None:
    rows = Rows(random_logits(4, VOCAB), top_p=0.9)
    arguments = (*rows.arguments(), torch.empty(4, dtype=torch.int64))
    torch.library.opcheck(torch.ops.parley.choose_tokens.default, arguments)


@needs_cuda_kernels
def test_opcheck_on_a_gpu() -> None:
    rows = Rows(random_logits(4, VOCAB), top_p=0.9)
    arguments = (*rows.arguments(), torch.empty(4, dtype=torch.int64))
    torch.library.opcheck(torch.ops.parley_cuda.choose_tokens.default, arguments)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("logits", torch.zeros(4, VOCAB, dtype=torch.float64)),
        ("logits", torch.zeros(4, 0)),
        ("logits", torch.zeros(VOCAB, 4).T),
        ("temperatures", torch.full((4,), -1.0, dtype=torch.float64)),
        ("temperatures", torch.ones(4)),
        ("min_p", torch.zeros(3, dtype=torch.float64)),
        ("top_k", torch.zeros(4, dtype=torch.int64)),
        ("uniforms", torch.ones(4, dtype=torch.float64)),
        ("uniforms", torch.full((4,), torch.nan, dtype=torch.float64)),
    ],
)
def test_wrong_arguments_are_refused(name: str, wrong: Tensor) -> None:
    rows = Rows(random_logits(4, VOCAB))
    setattr(rows, name, wrong)
    with pytest.raises(RuntimeError, match=f"{name}|no token"):
        rows.choose("cpu")


# ---- the reference's shortcut -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_few_candidates_give_what_all_give(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = (torch.randn(40, VOCAB, generator=generator) * 2).exp()
    top_k = torch.randint(1, VOCAB + 1, (40, 1), generator=generator)
    top_p = torch.rand((40, 1), generator=generator, dtype=torch.float64)
    uniform = torch.rand((40, 1), generator=generator, dtype=torch.float64)
    arguments = (weights, top_k, top_p, uniform)
    assert choose_truncated(*arguments, 8).tolist() == choose_truncated(*arguments, VOCAB).tolist()


def test_an_extreme_uniform_number_stays_within_the_nucleus() -> None:
    weights = torch.tensor([[0.3, 0.5, 0.2, 0.0]])
    ones = torch.tensor([[1 - 2.0**-48]], dtype=torch.float64)
    off_k, off_p = torch.tensor([[4]]), torch.tensor([[1.0]], dtype=torch.float64)
    assert choose_truncated(weights, off_k, off_p, ones).tolist() == [2]
    assert choose_truncated(weights, off_k, off_p, torch.zeros_like(ones)).tolist() == [1]
