"""`KeptTensor`: the same memory for every step, whatever the sizes, once it was large enough."""

import numpy as np
import torch

from engine.core.tensors.batch import KeptTensor


def test_a_write_of_the_same_shape_is_the_same_tensor_with_other_values() -> None:
    kept = KeptTensor(np.int32)
    first = kept.write([[1, 2], [3, 4]], 2, 2)
    assert first.dtype == torch.int32 and first.tolist() == [[1, 2], [3, 4]]
    assert kept.write(7, 2, 2) is first
    assert first.tolist() == [[7, 7], [7, 7]]


def test_smaller_shapes_lie_in_the_same_memory_without_gaps() -> None:
    kept = KeptTensor(np.int64)
    large = kept.write(0, 3, 8)
    small = kept.write([[1, 2, 3], [4, 5, 6]], 2, 3)
    assert small.is_contiguous() and small.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert kept.write(0, 0).tolist() == []
    assert kept.write(0, 3, 8).data_ptr() == small.data_ptr() == large.data_ptr()


def test_memory_grows_and_leaves_what_was_handed_out() -> None:
    kept = KeptTensor(np.float64)
    small = kept.write([0.5], 1)
    assert kept.write(range(1000), 1000).tolist() == list(range(1000))
    assert small.tolist() == [0.5]
