"""Numbers that are put into other forms stand for the same."""

import torch

from engine.core.ops.numbers import Numbers, join
from tests.engine.helpers.published.floats import floats_of

ROWS, WIDTH = 5, 80  # two parts of 32 and a half


def numbers(bits: int, part_inputs: int, *, has_least: bool) -> Numbers:
    torch.manual_seed(bits + part_inputs)
    shape = (ROWS, -(-WIDTH // part_inputs))
    codes = torch.randint(0, 1 << bits, (ROWS, WIDTH)).to(torch.uint8)
    least = torch.randn(shape).half() if has_least else None
    return Numbers(codes, torch.rand(shape).half(), least, bits, part_inputs)


FORMS = [(4, 32, False), (4, 32, True), (6, 16, False), (6, 32, True), (8, 32, False)]


def test_numbers_in_more_bits_or_smaller_parts_or_with_a_least_stand_for_the_same() -> None:
    for bits, part_inputs, has_least in FORMS:
        some = numbers(bits, part_inputs, has_least=has_least)
        expected = floats_of(some)
        assert torch.equal(floats_of(some.in_bits(8)), expected)
        assert torch.equal(floats_of(some.in_parts_of(16)), expected)
        assert torch.equal(floats_of(some.with_least()), expected)
        assert torch.equal(floats_of(some.with_least().in_bits(8)), expected)


def test_weights_of_any_forms_are_joined() -> None:
    some = [numbers(bits, inputs, has_least=least) for bits, inputs, least in FORMS]
    joined = join(some, lambda parts: torch.cat(list(parts)))
    assert (joined.bits, joined.part_inputs) == (8, 16)
    assert torch.equal(floats_of(joined), torch.cat([floats_of(each) for each in some]))


def test_a_join_without_least_numbers_has_none() -> None:
    some = [numbers(4, 32, has_least=False), numbers(6, 16, has_least=False)]
    joined = join(some, lambda parts: torch.cat(list(parts)))
    assert joined.least is None and joined.bits == 6
    assert torch.equal(floats_of(joined), torch.cat([floats_of(each) for each in some]))
