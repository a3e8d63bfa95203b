"""What a step of the fused decoder takes, in groups, and the built op behind them.

`torch.ops.parley.decoder_step` takes its many arguments in a row. Only `flatten` knows their
order: everything else passes these groups, which mypy sees.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.core.ops.adapters import ModuleSizes, StepAdapters
from engine.core.ops.packing import PackedWeight
from engine.core.ops.stacks import PackedStack, piece_table


class StepInput(NamedTuple):
    """The tokens of one step, as `Batch` has them, whose logits are wanted. In the op's order."""

    input_ids: Tensor  # [num_rows] int64
    positions: Tensor  # [num_rows] int64
    slot_mapping: Tensor  # [num_rows] int64: block * 16 + offset, -1 is padding
    block_tables: Tensor  # [num_seqs, max_blocks] int32
    cu_seqlens_q: Tensor  # [num_seqs + 1] int32: sequence i has tokens cu[i] to cu[i + 1]
    seq_lens: Tensor  # [num_seqs] int32: tokens with keys and values after this step
    logits_rows: Tensor  # [num_logits] int64: the tokens whose logits are wanted


class DecoderCache(NamedTuple):
    """Keys and values of all layers, which a step reads and writes. In the op's order."""

    keys: Tensor  # [layers, num_blocks, 16, num_kv_heads, head_dim], as allocate_cache lays them
    values: Tensor  # likewise
    scales: Tensor | None  # of int8: [layers, num_blocks, 2, num_kv_heads, 16] float32


class TokenTable(Protocol):
    """Embeddings that are kept as something else, of which each step's tokens are looked up."""

    @property
    def window(self) -> Tensor:
        """[vocab, hidden], as the op reads it. Its first rows are those of the last tokens."""
        ...

    def look_up(self, input_ids: Tensor) -> Tensor:
        """Write the rows of these tokens into the window: where each is there, [num_rows]."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights, packed. Norms and biases are float32."""

    embeddings: Tensor | None  # [vocab, hidden]; None: the output layer's are used
    norms: Tensor  # [2 * layers + 1, hidden]: of attention and MLP of each layer, the last
    qk_norms: Tensor | None  # [layers, 2, head_dim]
    qkv: PackedStack
    qkv_bias: Tensor | None  # [layers, outputs]
    attention_out: PackedStack
    gate_up: PackedStack  # panels of both in turn
    down: PackedStack
    head: PackedWeight
    table: TokenTable | None = None  # whose window `embeddings` is, if it is one

    @property
    def stacks(self) -> tuple[PackedStack, PackedStack, PackedStack, PackedStack]:
        """In the op's order."""
        return self.qkv, self.attention_out, self.gate_up, self.down


class DecoderSettings(NamedTuple):
    """The numbers that no shape gives. In the op's order."""

    windows: tuple[int, ...]  # of each layer, 0 = all
    num_heads: int
    scale: float  # of the scores
    epsilon: float  # of the norms


@dataclass(frozen=True)
class LoadedDecoder:
    """All that is the same in every step."""

    weights: DecoderWeights
    rotary: Tensor  # [num_positions, 2, head_dim / 2] float32: cosines and sines
    cache: DecoderCache
    settings: DecoderSettings

    @cached_property
    def tensors(self) -> tuple[Tensor | list[Tensor] | None, ...]:
        """In the op's order; once, as there is a step for each token."""
        weights = self.weights
        kinds = [packed for stack in weights.stacks for packed in stack.kinds]
        return (
            *self.cache,
            weights.embeddings,
            weights.norms,
            weights.qk_norms,
            weights.qkv_bias,
            self.rotary,
            [packed.panels for packed in kinds],
            [torch.empty(0) if packed.scales is None else packed.scales for packed in kinds],
            piece_table(weights.stacks),
            *(weights.head.panels, weights.head.scales),
        )

    @cached_property
    def module_sizes(self) -> ModuleSizes:
        """Of the modules that may be adapted, as the step computes them."""
        num_kv_heads, head_dim = self.cache.keys.shape[-2:]
        return module_sizes(self.weights, self.settings.num_heads, num_kv_heads, head_dim)


def module_sizes(
    weights: DecoderWeights, num_heads: int, num_kv_heads: int, head_dim: int
) -> ModuleSizes:
    """Inputs and outputs of a layer's modules, with the padding of the packed weights."""
    hidden, attended = weights.norms.shape[1], num_heads * head_dim
    gated = weights.gate_up.num_outputs // 2
    key, gate = (hidden, num_kv_heads * head_dim), (hidden, gated)
    num_gated = weights.down.num_inputs
    return ((hidden, attended), key, key, (attended, hidden), gate, gate, (num_gated, hidden))


class HiddenRows(NamedTuple):
    """The last hidden states that a step writes, after the last norm. In the op's order."""

    rows: Tensor  # [num_hidden] int64: of which tokens
    out: Tensor  # [num_hidden, hidden] float32, written


class DecoderStep(Protocol):
    """One forward pass. It writes `logits`, [num_logits, vocab] float32, and `hidden.out`."""

    def __call__(
        self,
        inputs: StepInput,
        decoder: LoadedDecoder,
        logits: Tensor,
        hidden: HiddenRows | None = None,
        adapters: StepAdapters | None = None,
        /,
    ) -> None: ...


def decoder_step(
    inputs: StepInput,
    decoder: LoadedDecoder,
    logits: Tensor,
    hidden: HiddenRows | None = None,
    adapters: StepAdapters | None = None,
) -> None:
    """One forward pass, as built; `decoder_step_reference` says what it computes."""
    torch.ops.parley.decoder_step(*flatten(inputs, decoder, logits, hidden, adapters))


def flatten(
    inputs: StepInput,
    decoder: LoadedDecoder,
    logits: Tensor,
    hidden: HiddenRows | None = None,
    adapters: StepAdapters | None = None,
) -> tuple[Any, ...]:
    """The arguments of the op, as csrc/cpu/registration.cpp declares them."""
    arguments = (*inputs, *decoder.tensors, logits, *decoder.settings)
    if adapters is not None:
        return *arguments, *(hidden or (None, None)), *adapters
    return *arguments, *(hidden or ())
