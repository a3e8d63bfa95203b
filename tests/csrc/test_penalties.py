"""penalize against its torch reference, to the last bit: awkward sizes, strides, wrong input."""

import dataclasses

import pytest
import torch
from torch import Tensor

from engine.core.ops import library as ops
from engine.core.ops.reference import Penalize, penalize_reference
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.cuda_kernels import needs_cuda_kernels

pytestmark = needs_kernels
BOTH = pytest.mark.parametrize(
    "name", ["parley", pytest.param("parley_cuda", marks=needs_cuda_kernels)]
)


def op_of(name: str) -> Penalize:
    op: Penalize = getattr(torch.ops, name).penalize
    return op


@dataclasses.dataclass
class Arguments:
    """Of the op, in its order; `row_sizes` are numbers of ids of the penalized rows."""

    logits: Tensor
    rows: Tensor
    offsets: Tensor
    ids: Tensor
    counts: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor

    @classmethod
    def random(
        cls, num_rows: int, vocab: int, rows: list[int], row_sizes: list[int]
    ) -> "Arguments":
        generator = torch.Generator().manual_seed(num_rows * vocab + len(rows))
        ids = [torch.randperm(vocab, generator=generator)[:size] for size in row_sizes]
        num_ids = sum(row_sizes)
        counts = torch.randint(0, 4, (num_ids,), generator=generator).float()
        penalties = torch.randn(3, len(rows), dtype=torch.float64, generator=generator)
        return cls(
            logits=torch.randn(num_rows, vocab, generator=generator) * 5,
            rows=torch.tensor(rows, dtype=torch.int64),
            offsets=torch.tensor([0, *row_sizes]).cumsum(0),
            ids=torch.cat([torch.empty(0, dtype=torch.int64), *ids]),
            counts=counts,
            repetition=penalties[0].exp(),
            frequency=penalties[1],
            presence=penalties[2],
        )

    def all(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def check(self, op: Penalize) -> None:
        """That the op and the reference change the same logits to the same bits."""
        expected = self.logits.clone()
        penalize_reference(expected, *self.all()[1:])
        op(*self.all())
        assert torch.equal(self.logits.view(torch.int32), expected.view(torch.int32))


@BOTH
@pytest.mark.parametrize("vocab", [1, 7, 64, 1001])
@pytest.mark.parametrize(
    ("num_rows", "rows"), [(1, [0]), (3, [1]), (5, [0, 4]), (33, list(range(33))), (4, [])]
)
def test_bits_are_those_of_the_reference(
    num_rows: int, rows: list[int], vocab: int, name: str
) -> None:
    row_sizes = [(place * 37 + 5) % (vocab + 1) for place in range(len(rows))]
    Arguments.random(num_rows, vocab, rows, row_sizes).check(op_of(name))


@BOTH
def test_rows_may_lie_apart(name: str) -> None:
    arguments = Arguments.random(4, 90, [0, 2, 3], [50, 0, 90])
    whole = torch.zeros(4, 100)
    whole[:, :90] = arguments.logits
    arguments.logits = whole[:, :90]
    expected = whole.clone()
    penalize_reference(expected[:, :90], *arguments.all()[1:])
    op_of(name)(*arguments.all())
    assert torch.equal(whole, expected)


@BOTH
def test_infinite_logits_and_extreme_penalties_are_those_of_the_reference(name: str) -> None:
    arguments = Arguments.random(4, 40, [0, 1, 2, 3], [40] * 4)
    arguments.logits[:, ::3] = -torch.inf
    arguments.logits[:, 1::9] = 0.0
    arguments.repetition.copy_(torch.tensor([1.0, 1e-40, 1e300, 3e38]))
    arguments.frequency.copy_(torch.tensor([0.0, 2.0, -2.0, 0.1]))
    expected = arguments.logits.clone()
    penalize_reference(expected, *arguments.all()[1:])
    op_of(name)(*arguments.all())
    torch.testing.assert_close(arguments.logits, expected, rtol=0, atol=0, equal_nan=True)


@BOTH
def test_opcheck(name: str) -> None:
    arguments = Arguments.random(3, 20, [0, 2], [5, 9])
    op = getattr(torch.ops, name).penalize.default
    torch.library.opcheck(op, tuple(arguments.all()))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("logits", torch.zeros(3, 20, dtype=torch.float64)),
        ("logits", torch.zeros(20, 3).T),
        ("logits", torch.zeros(20)),
        ("rows", torch.tensor([2, 0])),
        ("rows", torch.tensor([0, 0])),
        ("rows", torch.tensor([-1, 2])),
        ("rows", torch.tensor([0, 3])),
        ("rows", torch.tensor([0.0, 2.0])),
        ("offsets", torch.tensor([0, 5])),
        ("offsets", torch.tensor([1, 5, 14])),
        ("offsets", torch.tensor([0, 5, 13])),
        ("offsets", torch.tensor([0, 15, 14])),
        ("ids", torch.full((14,), 20)),
        ("ids", torch.full((14,), -1)),
        ("ids", torch.arange(28)[::2]),
        ("counts", torch.zeros(13)),
        ("counts", torch.zeros(14, dtype=torch.int64)),
        ("repetition", torch.ones(2)),
        ("frequency", torch.ones(3, dtype=torch.float64)),
        ("presence", torch.tensor(1.0, dtype=torch.float64)),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(name: str, wrong: Tensor) -> None:
    arguments = Arguments.random(3, 20, [0, 2], [5, 9])
    setattr(arguments, name, wrong)
    before = arguments.logits.clone()
    with pytest.raises(RuntimeError, match=r"logits|rows|ids|offsets|counts|penalties"):
        ops.choose("cpu").penalize(*arguments.all())
    assert torch.equal(arguments.logits, before)
