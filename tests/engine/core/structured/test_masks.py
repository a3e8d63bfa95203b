"""How masks are laid over logits, on the host and as a device does it."""

import numpy as np
import pytest
import torch

from engine.core.structured.masks import Fences, banned_by, lay_over


def make(num_rows: int, vocab: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks [n, words] int32 at random, and the same as [n, vocab] bool: what is allowed."""
    generator = torch.Generator().manual_seed(vocab)
    allowed = torch.rand(num_rows, vocab, generator=generator) < share
    padded = np.zeros((num_rows, -(-vocab // 32) * 32), np.uint8)
    padded[:, :vocab] = allowed.numpy()
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32)), allowed


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000, 1023])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.998, 1.0])
def test_both_ways_ban_just_what_has_no_bit(vocab: int, share: float) -> None:
    masks, allowed = make(3, vocab, share)
    assert torch.equal(banned_by(masks, vocab), ~allowed)
    logits = torch.randn(5, vocab)
    expected = logits.clone()
    for place, row in enumerate((0, 2, 4)):
        expected[row].masked_fill_(~allowed[place], -torch.inf)
    lay_over(logits.numpy(), (0, 2, 4), masks.numpy())
    assert torch.equal(logits, expected)


def test_logits_that_are_no_numbers_stay_none() -> None:
    masks, allowed = make(1, 64, 0.3)
    logits = torch.full((1, 64), torch.nan)
    logits[0, 5] = torch.inf
    Fences([0], masks, frozenset(), frozenset(), {}).apply(logits, list)
    assert not logits[0][allowed[0]].isfinite().any()
    assert not logits[0][~allowed[0]].isfinite().any()
