"""Weights of GGUF files as whole numbers: the codes that lie there, with nothing computed of them.

A code is what the file holds, or for types which look their numbers up in a table the number
there. Where a code in the middle stands for 0, all are moved so that it is the middle of as many
bits as the kernels take. A part has the scale of the file: float16, or in K types and IQ4_XS
a float16 times a small whole number, which is rounded to float16 once, so by 2 ** -11 of it at
most; also where the product is subnormal, for there it is exact, as every float16 is a multiple of
the smallest.

How the bits of a block lie is as in ggml's quants; tests hold it against the `gguf` package.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.core.models.gguf.headers import GgufTensor
from engine.core.models.gguf.weights import Bytes, read_slabs, row_order
from engine.core.ops.numbers import ZEROS, NumberKind, Numbers
from engine.errors import UnsupportedModelError

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled, so that they are whole

Whole = np.ndarray[tuple[int, ...], np.dtype[np.integer[Any]]]
Runs = np.ndarray[tuple[int, ...], np.dtype[np.void]]


def read_numbers(tensor: GgufTensor) -> Numbers:
    """A tensor of one of `NUMBER_TYPES`, its rows in the order of a checkpoint.

    Raises `UnsupportedModelError` for a file that has become shorter, and for a scale or a least
    number that is no finite float16: rounded to infinity, or to zero as the smallest powers of two
    of MXFP4 would be, it would stand for other weights than the file does.
    """
    type_, width = _TYPES[tensor.type.name], tensor.shape[-1]
    codes = torch.empty(tensor.num_rows, width, dtype=torch.uint8)
    scales = torch.empty(tensor.num_rows, width // type_.part_inputs, dtype=torch.float16)
    least = torch.empty_like(scales) if type_.has_least else None

    def fill(first: int, rows: Bytes) -> None:
        slab = slice(first, first + len(rows))
        blocks = rows.reshape(-1, tensor.type.num_bytes)
        of_slab = codes[slab].numpy().reshape(len(blocks), -1)
        parts = type_.unpack(blocks, of_slab)
        of_slab += np.uint8(type_.moved)
        for part in (parts.scales, _least(type_, parts)):
            if not part.isfinite().all():
                problem = f"{tensor.name} has a scale that float16 does not hold"
                raise UnsupportedModelError(f"{tensor.file}: {problem} ({tensor.type.name})")
        scales[slab].copy_(parts.scales.view(len(rows), -1))
        if least is not None and parts.least is not None:
            least[slab].copy_(parts.least.view(len(rows), -1))

    read_slabs(tensor, fill)
    order = row_order(tensor)
    if order is not None:
        codes, scales = codes[order], scales[order]
        least = None if least is None else least[order]
    return Numbers(codes, scales, least, type_.bits, type_.part_inputs)


class _Parts(NamedTuple):
    """Of blocks, [num_blocks, parts of a block] float16."""

    scales: Tensor
    least: Tensor | None = None


class _NumberType(NamedTuple):
    """`unpack` writes the codes of blocks, [num_blocks, block_size]."""

    bits: int  # as which they are packed
    part_inputs: int
    unpack: Callable[[Bytes, Bytes], _Parts]
    zero: int | None = None  # the code of 0; None: parts have least numbers

    @property
    def has_least(self) -> bool:
        return self.zero is None

    @property
    def moved(self) -> int:
        """What is added to the codes, as bytes."""
        return 0 if self.zero is None else (ZEROS[self.bits] - self.zero) & 255


def _least(type_: _NumberType, parts: _Parts) -> Tensor:
    """What the code 0 stands for, which must be finite too."""
    return parts.scales * -ZEROS[type_.bits] if parts.least is None else parts.least


def _q4_0(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 2:], 4, 16)
    return _Parts(_halves(blocks, 0))


def _q4_1(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 4:], 4, 16)
    return _Parts(_halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 6:], 4, 16)
    codes |= np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
    return _Parts(_halves(blocks, 0))


def _q5_1(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 8:], 4, 16)
    codes |= np.unpackbits(blocks[:, 4:8], axis=1, bitorder="little") << 4
    return _Parts(_halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Bytes, codes: Bytes) -> _Parts:
    np.bitwise_xor(_copied(blocks[:, 2:]), 128, out=codes)  # of an int8: + 128
    return _Parts(_halves(blocks, 0))


def _q2_k(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 16:80], 2, 32)
    scales = blocks[:, :16]
    return _Parts(_times(blocks, 80, scales & 15), -_times(blocks, 82, scales >> 4))


def _q3_k(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 32:96], 2, 32)
    _add_bits(codes, blocks[:, :32], 1, 32, place=2)
    scales = np.empty((len(blocks), 16), np.uint8)
    _put_bits(scales, blocks[:, 96:104], 4, 8)
    _add_bits(scales, blocks[:, 104:108], 2, 4, place=4)
    return _Parts(_times(blocks, 108, scales.view(np.int8) - np.int8(32)))


def _q4_k(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 16:], 4, 32)
    return _scales_and_mins(blocks)


def _q5_k(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, 48:], 4, 32)
    _add_bits(codes, blocks[:, 16:48], 1, 32, place=4)
    return _scales_and_mins(blocks)


def _q6_k(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_bits(codes, blocks[:, :128], 4, 64)
    _add_bits(codes, blocks[:, 128:192], 2, 32, place=4)
    return _Parts(_times(blocks, 208, blocks[:, 192:208].view(np.int8)))


def _iq4_nl(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_looked_up(codes, blocks[:, 2:], IQ4)
    return _Parts(_halves(blocks, 0))


def _iq4_xs(blocks: Bytes, codes: Bytes) -> _Parts:
    _put_looked_up(codes, blocks[:, 8:], IQ4)
    scales = np.empty((len(blocks), 8), np.uint8)
    _put_bits(scales, blocks[:, 4:8], 4, 1)
    _add_bits(scales, blocks[:, 2:4], 2, 1, place=4)
    return _Parts(_times(blocks, 0, scales.view(np.int8) - np.int8(32)))


def _mxfp4(blocks: Bytes, codes: Bytes) -> _Parts:
    """A power of two is exact or nothing. Blocks of zeros, which have the smallest, need none."""
    _put_looked_up(codes, blocks[:, 1:], E2M1)
    exponents = blocks[:, :1].astype(np.int32) - 128  # one less: the table is doubled
    exact = torch.from_numpy(np.ldexp(np.float32(1), exponents))
    scales = exact.half()
    wrong = (scales != exact)[:, 0]
    is_zero = torch.from_numpy(codes)[wrong].eq(_MIDDLE).all(dim=1, keepdim=True)
    scales[wrong] = torch.where(is_zero, 0.0, torch.inf).half()
    return _Parts(scales)


_MIDDLE = 128  # the code of 0 where tables are looked up
_TYPES = {
    "Q4_0": _NumberType(4, 32, _q4_0, zero=8),
    "Q4_1": _NumberType(4, 32, _q4_1),
    "Q5_0": _NumberType(6, 32, _q5_0, zero=16),
    "Q5_1": _NumberType(6, 32, _q5_1),
    "Q8_0": _NumberType(8, 32, _q8_0, zero=128),
    "Q2_K": _NumberType(4, 16, _q2_k),
    "Q3_K": _NumberType(4, 16, _q3_k, zero=4),
    "Q4_K": _NumberType(4, 32, _q4_k),
    "Q5_K": _NumberType(6, 32, _q5_k),
    "Q6_K": _NumberType(6, 16, _q6_k, zero=32),
    "IQ4_NL": _NumberType(8, 32, _iq4_nl, zero=_MIDDLE),
    "IQ4_XS": _NumberType(8, 32, _iq4_xs, zero=_MIDDLE),
    "MXFP4": _NumberType(6, 32, _mxfp4, zero=_MIDDLE),
}

NUMBER_TYPES: Mapping[str, NumberKind] = {
    name: NumberKind(type_.bits, type_.part_inputs, type_.has_least)
    for name, type_ in _TYPES.items()
}


def _put_bits(codes: Bytes, packed: Bytes, bits: int, run: int) -> None:
    """Codes of so many bits: the lowest of `run` bytes first, then the next ones of the same."""
    packed = _copied(packed)
    places = _as_runs(codes, run).reshape(len(codes), -1, 8 // bits)
    for index in range(8 // bits):
        field = (packed >> np.uint8(index * bits)) & np.uint8((1 << bits) - 1)
        places[:, :, index] = _as_runs(field, run)


def _add_bits(codes: Bytes, packed: Bytes, bits: int, run: int, place: int) -> None:
    """More bits of codes, which lie as in `_put_bits`, above the first `place` ones."""
    more = np.empty_like(codes)
    _put_bits(more, packed, bits, run)
    more <<= place
    codes |= more


def _copied(part: Bytes) -> Bytes:
    """Bytes that every block has in one place, without what lies between: of them numpy is fast."""
    return np.ascontiguousarray(_as_runs(part, part.shape[1])).view(np.uint8)


def _as_runs(part: Bytes, run: int) -> Runs:
    """[num_blocks, runs]: so that numpy moves each as a whole, and not byte after byte."""
    return part.view(np.dtype((np.void, run)))


def _put_looked_up(codes: Bytes, packed: Bytes, table: tuple[int, ...]) -> None:
    _put_bits(codes, packed, 4, 16)
    moved = (np.array(table, np.int16) + _MIDDLE).astype(np.uint8)
    np.take(moved, codes, out=codes, mode="clip")


def _halves(blocks: Bytes, start: int) -> Tensor:
    """The float16 that lies there, [num_blocks, 1]. Torch computes with them; numpy is slow."""
    return torch.from_numpy(_copied(blocks[:, start : start + 2]).view(np.float16))


def _times(blocks: Bytes, start: int, factors: Whole) -> Tensor:
    """The float16 that lies there, times whole numbers of at most 8 bits: rounded once."""
    return (_halves(blocks, start).float() * torch.from_numpy(factors)).half()


def _scales_and_mins(blocks: Bytes) -> _Parts:
    """Of Q4_K and Q5_K: eight of each, of 6 bits.

    Four scales and then four minimums have the low 6 bits of a byte. Of the other four of each, the
    low and the high half of a byte are the low 4 bits, and the 2 bits that are left the high ones.
    """
    first, rest = blocks[:, 4:12], blocks[:, 12:16]
    low, high = first & 63, (first >> 6) << 4
    scales = np.concatenate((low[:, :4], rest & 15 | high[:, :4]), axis=1)
    mins = np.concatenate((low[:, 4:], rest >> 4 | high[:, 4:]), axis=1)
    return _Parts(_times(blocks, 0, scales), -_times(blocks, 2, mins))
