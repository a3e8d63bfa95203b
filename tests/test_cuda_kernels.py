"""How tests bring the tensors of a call to a GPU and back, played on a CPU."""

import torch
from torch import Tensor

from tests.helpers.cuda_kernels import elsewhere

CPU = torch.device("cpu")


def test_what_is_written_elsewhere_comes_back_and_nothing_else() -> None:
    seen: list[Tensor] = []

    def double(rows: Tensor, factor: float, out: Tensor, nothing: Tensor | None) -> None:
        seen.extend((rows, out))
        out.copy_(rows * factor)
        rows.zero_()

    rows, whole = torch.arange(6.0).view(2, 3), torch.zeros(2, 5)
    call = elsewhere(double, [False, False, True, False], CPU)
    assert call(rows, 2.0, whole[:, 1:4], None) is None
    assert whole.tolist() == [[0, 0, 2, 4, 0], [0, 6, 8, 10, 0]]
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert seen[1].stride() == (5, 1) and seen[1].data_ptr() != whole[:, 1:4].data_ptr()


def test_a_result_is_given_back() -> None:
    assert elsewhere(lambda width: width > 3, [False], CPU)(5)
