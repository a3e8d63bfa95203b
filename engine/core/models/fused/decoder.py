"""`FusedDecoder`: llama, mistral, qwen2 and qwen3 on a CPU, one call of C++ for a whole step.

What transformers computes with some ten operations for each layer is one op here,
`torch.ops.parley.decoder_step`: weights are packed when the model is loaded, products, norms and
rotations write into memory that is kept, and a team of threads stays together for the whole step.
Between the products everything is float32. A row's bits do not depend on the other rows.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from engine.core.models.fused.shape import DecoderShape, read_shape, rotary_table
from engine.core.models.fused.weights import pack_weights
from engine.core.ops.adapters import StepAdapters
from engine.core.ops.decoder_step import (
    DecoderCache,
    DecoderSettings,
    DecoderStep,
    DecoderWeights,
    HiddenRows,
    LoadedDecoder,
    StepInput,
)
from engine.core.tensors import huge_pages
from engine.core.tensors.batch import AdapterRows, Batch
from engine.core.tensors.kv_cache import CPU, allocate_cache, stack_layers

BLOCK_SIZE = 16  # tokens of a cache block: what csrc is written for


class FusedDecoder:
    """A model's weights and its forward pass; the KV cache is the runner's to allocate.

    `rotate` is transformers' module that gives the cosines and sines of positions.
    """

    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        rotate: nn.Module,
        step: DecoderStep,
    ) -> None:
        self.shape = shape
        self._weights: DecoderWeights | None = weights
        self.rotate = rotate
        self._memory = torch.empty((0, shape.vocab_size))  # grows to the most logits of a step
        self._logits = self._memory  # as much of it as the last step took
        self.hidden: Tensor | None = None  # [num_hidden, hidden] float32, of the last step
        self.loaded: LoadedDecoder | None = None  # since the cache is allocated
        self._step = step

    @property
    def weights(self) -> DecoderWeights:
        assert self._weights is not None, "they were dropped"
        return self._weights

    @property
    def caches(self) -> list[Tensor]:
        """The memory of all keys and values, and of their scales."""
        cache = () if self.loaded is None else self.loaded.cache
        return [part for part in cache if part is not None]

    @property
    def cache_bytes_per_token(self) -> int:
        """In all layers together."""
        shape = self.shape
        head_bytes = shape.head_dim * shape.cache_dtype.itemsize
        if shape.cache_dtype == torch.int8:
            head_bytes += torch.float32.itemsize  # its scale
        return 2 * shape.num_layers * shape.num_kv_heads * head_bytes

    def allocate_cache(self, num_blocks: int, num_positions: int) -> None:
        """The KV cache, and rotations for sequences of `num_positions` tokens at most.

        The system gives memory page by page when it is first used. MemoryError if the system
        refuses.
        """
        shape = self.shape
        sizes = (shape.num_layers * num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        keys = allocate_cache(*sizes, shape.cache_dtype, is_key=True)
        values = allocate_cache(*sizes, shape.cache_dtype, is_key=False)
        scales = None
        if shape.cache_dtype == torch.int8:
            columns = (shape.num_layers, num_blocks, 2, shape.num_kv_heads, BLOCK_SIZE)
            scales = huge_pages.zeros(columns, torch.float32)
        keys, values = (stack_layers(part, shape.num_layers) for part in (keys, values))
        self.loaded = LoadedDecoder(
            self.weights,
            rotary_table(self.rotate, num_positions, CPU),
            DecoderCache(keys, values, scales),
            DecoderSettings(shape.windows, shape.num_heads, shape.scale, shape.epsilon),
        )

    def drop_cache(self) -> None:
        """Give its memory back; `allocate_cache` makes another one."""
        self.loaded = self.hidden = None

    def drop_weights(self) -> None:
        """Give their memory back. It computes nothing any more."""
        self._weights = self.loaded = None
        self.drop_logits()

    def drop_logits(self) -> None:
        """Give back what the widest step so far has needed: the next one takes what it needs."""
        self._memory = self._logits = torch.empty((0, self.shape.vocab_size))

    def forward(self, batch: Batch) -> Tensor:
        """One pass; the logits of the wanted rows, [num_wanted, vocab] float32.

        They are the caller's until the next pass, which writes over them. `hidden` has the last
        hidden states that the batch wants, in memory of their own.
        """
        assert self.loaded is not None
        num_wanted = batch.num_wanted
        if self._logits.shape[0] != num_wanted:
            self._resize_logits(num_wanted)
        table = self.weights.table
        inputs = StepInput(
            batch.input_ids if table is None else table.look_up(batch.input_ids),
            batch.positions,
            batch.slot_mapping,
            batch.block_tables,
            batch.cu_seqlens_q,
            batch.seq_lens,
            batch.logits_rows[:num_wanted],
        )
        self.hidden = None
        if batch.hidden_rows is None and not batch.adapters:
            self._step(inputs, self.loaded, self._logits)
            return self._logits
        hidden = None
        if batch.hidden_rows is not None:
            self.hidden = torch.empty((len(batch.hidden_rows), self.shape.hidden_size))
            hidden = HiddenRows(batch.hidden_rows, self.hidden)
        adapters = _step_adapters(batch.adapters, len(batch.input_ids)) if batch.adapters else None
        self._step(inputs, self.loaded, self._logits, hidden, adapters)
        return self._logits

    def _resize_logits(self, num_rows: int) -> None:
        if len(self._memory) < num_rows:
            self._memory = torch.empty((num_rows, self.shape.vocab_size))
        self._logits = self._memory[:num_rows]


def _step_adapters(parts: Collection[AdapterRows], num_rows: int) -> StepAdapters:
    """Their `adapter`s are `PackedAdapter`s."""
    rows = torch.full((num_rows,), -1)
    for index, part in enumerate(parts):
        rows[part.places] = index
    adapters = [part.adapter for part in parts]
    return StepAdapters(
        rows,
        [adapter.weights for adapter in adapters],
        torch.stack([adapter.targets for adapter in adapters]),
        torch.tensor([adapter.rank for adapter in adapters]),
    )


def fuse(model: Any, step: DecoderStep, format: str, cache_dtype: torch.dtype) -> FusedDecoder:
    """Pack a loaded transformers model, which loses its weights thereby, layer by layer.

    `format` is that of the weights; those that are numbers in their file stay what they are.

    Raises ValueError if a layer has other parameters than those that are computed.
    """
    shape = read_shape(model, cache_dtype)
    weights = pack_weights(model, shape, format)
    return FusedDecoder(shape, weights, model.model.rotary_emb, step)
