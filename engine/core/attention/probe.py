"""Tries a way to compute attention on a few tokens before a model relies on it.

Libraries refuse what their kernels do not support, such as a page size, or, worse, ignore it; and
kernels that are compiled at the first call may fail only then.
"""

import logging
from collections.abc import Callable

import torch

from engine.core.attention.backends import AttentionBackend, OpsAttention
from engine.core.attention.scores import Scores
from engine.core.ops.library import REFERENCE
from engine.core.tensors.batch import Batch

logger = logging.getLogger(__name__)

PAGE_SIZES = (16, 32, 64, 128, 256)  # that are tried where nobody says which one is right
TOLERANCE = 5e-2  # of outputs of about 1, in 16 bits
QUERY_LENS = ([3, 1], [1, 1])  # a chunk beside a single query, and single queries alone


def find_page_size(
    make: Callable[[int], AttentionBackend], dtype: torch.dtype, device: torch.device, head_dim: int
) -> int | None:
    """The smallest page with which a backend `is_right`; None if there is none."""
    for page_size in PAGE_SIZES:
        if is_right(make(page_size), dtype, device, head_dim):
            return page_size
    return None


def is_right(
    backend: AttentionBackend, dtype: torch.dtype, device: torch.device, head_dim: int
) -> bool:
    """Whether it gives what the reference gives."""
    page_size = backend.page_size
    generator = torch.Generator().manual_seed(page_size)
    # As they lie in a cache: a block of one layer is followed by the block of another one.
    caches = torch.randn(8, 3, page_size, 1, head_dim, generator=generator).to(device, dtype)
    keys, values, _ = caches.unbind(1)
    tables = torch.tensor([[6, 2, 5], [3, 0, 0]], dtype=torch.int32, device=device)
    scores = Scores(head_dim**-0.5)
    for query_lens in QUERY_LENS:
        batch = Batch.of_attention(query_lens, [2 * page_size + 3, 5], tables)
        query = torch.randn(sum(query_lens), 2, head_dim, generator=generator).to(device, dtype)
        out, expected = torch.zeros_like(query), torch.zeros_like(query)
        try:
            backend.attend(query, keys, values, batch, out, scores)
        except Exception as error:  # of a library that we know nothing about
            line = (str(error).splitlines() or [""])[0][:200]
            logger.debug(
                "%s, %d tokens a page: %s: %s", backend.name, page_size, type(error).__name__, line
            )
            return False
        OpsAttention(REFERENCE).attend(query, keys, values, batch, expected, scores)
        if not torch.allclose(out.float(), expected.float(), rtol=0, atol=TOLERANCE):
            return False
    return True
