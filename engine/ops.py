"""The Python face of csrc: each op as its torch reference, its specification, and as built.

`choose(backend)` returns one `Ops` with the same signatures either way, so that nothing else knows
whether there was a compiler. The references run on any device and dtype; they are written to be
read and to be right, and take arguments one by one as csrc/cpu/registration.cpp declares them.

    key_cache    [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache  [num_blocks, block_size, num_kv_heads, value_head_dim]  may be narrower than keys
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from csrc import build
from engine import huge_pages
from engine.fused.packing import round_rows, unpack
from engine.token_choice import ChooseTokens, choose_tokens_reference

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")
LEAST_CAPABILITY = (8, 0)  # of a GPU, for which csrc/cuda is compiled
GPU_BACKENDS = ("flash_attn", "varlen", "cuda")
Linear = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Tensor], None]
# As `penalize_reference` below.
Penalize = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of every op."""

    name: str  # as in `EngineConfig.attn_backend`
    store_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, int, float, Tensor | None],
        None,
    ]
    linear: Linear
    decoder_step: Callable[..., None]  # as engine/fused/reference.py declares it
    penalize: Penalize
    choose_tokens: ChooseTokens


NAMES = tuple(field.name for field in fields(Ops) if field.name != "name")


def store_kv_reference(
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,  # [num_tokens, num_kv_heads, value_head_dim]
    key_cache: Tensor,  # written
    value_cache: Tensor,  # written
    slot_mapping: Tensor,  # [num_tokens] int64: block * block_size + offset, negative is skipped
) -> None:
    """Write each token's key and value to its slot."""
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = key_cache.shape[1]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, offsets] = key[kept].to(key_cache.dtype)
    value_cache[blocks, offsets] = value[kept].to(value_cache.dtype)


def paged_attention_reference(
    query: Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,  # [num_seqs, max_blocks] int32
    cu_seqlens_q: Tensor,  # [num_seqs + 1] int32
    seq_lens: Tensor,  # [num_seqs] int32
    out: Tensor,  # [num_tokens, num_heads, value_head_dim], written
    scale: float,
    sliding_window: int,  # a query sees itself and the sliding_window - 1 tokens before, 0 = all
    softcap: float,  # scores become softcap * tanh(scores / softcap), 0 = off
    sinks: Tensor
    | None,  # [num_heads]: one more score per head that takes weight and gives nothing
) -> None:
    """Causal attention of the last tokens of each sequence over its blocks, in float32.

    The queries of sequence i are its last `cu_seqlens_q[i + 1] - cu_seqlens_q[i]` tokens of
    `seq_lens[i]`. Query head h reads key-value head `h // (num_heads / num_kv_heads)`.
    """
    block_size, num_kv_heads = key_cache.shape[1], key_cache.shape[2]
    group = query.shape[1] // num_kv_heads
    bounds, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for row, length in enumerate(lengths):
        begin, end = bounds[row], bounds[row + 1]
        num_blocks = -(-length // block_size)
        blocks = block_tables[row, :num_blocks].long()
        keys = key_cache[blocks].flatten(0, 1)[:length].float()  # [length, kv_heads, head_dim]
        values = value_cache[blocks].flatten(0, 1)[:length].float()
        queries = query[begin:end].float().view(end - begin, num_kv_heads, group, -1)
        scores = torch.einsum("tkgd,skd->kgts", queries, keys) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        query_places = torch.arange(length - (end - begin), length, device=query.device)[:, None]
        key_places = torch.arange(length, device=query.device)
        visible = key_places <= query_places
        if sliding_window:
            visible &= key_places > query_places - sliding_window
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            column = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, end - begin, 1)
            weights = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        result = torch.einsum("kgts,skd->tkgd", weights, values)
        out[begin:end] = result.flatten(1, 2).to(out.dtype)


def linear_reference(
    rows: Tensor,  # [num_rows, num_inputs]
    panels: Tensor,  # [num_panels, num_inputs / n, 16, n], as fused/packing.py makes them
    scales: Tensor | None,  # int8: [num_panels, groups, 16]
    bias: Tensor | None,  # [num_outputs]
    out: Tensor,  # [num_rows, num_outputs], written
) -> None:
    """A linear layer. The built op gives a row the same bits however many rows there are.

    With int8 weights rows are rounded, too, to 8 bits with a scale for 128 inputs.
    """
    rows = rows if scales is None else round_rows(rows)
    out.copy_(functional.linear(rows, unpack(panels, scales)[: out.shape[1]], bias))


def penalize_reference(
    logits: Tensor,  # [num_rows, vocab] float32, written
    rows: Tensor,  # [n] int64: those with penalties, ascending
    offsets: Tensor,  # [n + 1] int64: rows[i] has the ids from offsets[i] to offsets[i + 1]
    ids: Tensor,  # [num_ids] int64: tokens that were seen, in a row each once
    counts: Tensor,  # [num_ids] float32: how often in the answer; 0 = in the prompt alone
    repetition: Tensor,  # [n] float64: divides positive logits of all ids, multiplies others
    frequency: Tensor,  # [n] float64: taken off for each time in the answer
    presence: Tensor,  # [n] float64: taken off for being in the answer
) -> None:
    """Change the logits of the tokens that were seen. All is float32, rounded at each step."""
    bounds, factors = offsets.tolist(), repetition.tolist()
    each_time, once = frequency.tolist(), presence.tolist()
    for place, row in enumerate(rows.tolist()):
        own = slice(bounds[place], bounds[place + 1])
        values = logits[row, ids[own]]
        values = torch.where(values > 0, values / factors[place], values * factors[place])
        values -= each_time[place] * counts[own]
        values -= once[place] * (counts[own] > 0)
        logits[row, ids[own]] = values


def decoder_step_reference(*args: Any) -> None:
    """See engine/fused/reference.py, which is made of the references above."""
    from engine.fused.reference import decoder_step_reference

    decoder_step_reference(*args)


REFERENCE = Ops(
    "torch",
    store_kv_reference,
    paged_attention_reference,
    linear_reference,
    decoder_step_reference,
    penalize_reference,
    choose_tokens_reference,
)


def choose(backend: str, device: torch.device = CPU) -> Ops:
    """The ops of `EngineConfig.attn_backend`: "cpu" as built, "torch" as written here.

    "auto" takes what was built and falls back to the reference; "cpu" raises ValueError instead.
    Likewise if PARLEY_CPU_LEVEL names an instruction set that this machine does not have. On a GPU
    the name says what computes attention (engine/attention_choice.py), and the ops are csrc/cuda's.
    """
    if device.type == "cuda":
        return _choose_cuda(backend, device)
    if backend in GPU_BACKENDS:
        raise ValueError(f"attn_backend {backend!r} needs a GPU")
    if backend == "torch":
        return REFERENCE
    if backend not in ("auto", "cpu"):
        raise ValueError(f"attn_backend {backend!r} is none of auto, cpu, torch")
    if load_library():
        built = torch.ops.parley
        _tell_cpu_level()
        return Ops("cpu", **{name: getattr(built, name) for name in NAMES})
    if backend == "cpu":
        raise ValueError("attn_backend 'cpu' was asked for, but csrc could not be built")
    return REFERENCE


def _choose_cuda(backend: str, device: torch.device) -> Ops:
    if backend == "cpu":
        raise ValueError("attn_backend 'cpu' was asked for, but the model runs on a GPU")
    if backend == "torch":
        return REFERENCE
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        logger.warning("csrc/cuda needs Ampere or newer, and this GPU is %d.%d", *capability)
        return REFERENCE
    if not load_cuda_library():
        return REFERENCE
    built = torch.ops.parley_cuda
    names = ("store_kv", "paged_attention", "penalize", "choose_tokens")
    return dataclasses.replace(
        REFERENCE, name="cuda", **{name: getattr(built, name) for name in names}
    )


def _tell_cpu_level() -> None:
    """In the log; a level that is not there is an error now, not in the first step."""
    try:
        level = torch.ops.parley.cpu_level()
    except RuntimeError as error:  # torch puts the place in our code before our words
        message = str(error)
        raise ValueError(message[message.index("PARLEY_CPU_LEVEL") :]) from None
    logger.info("the kernels are those of CPU level %s", level)
    capability = torch.backends.cpu.get_cpu_capability()
    is_asked_for = bool(os.environ.get("PARLEY_CPU_LEVEL"))
    if level == "baseline" and capability in ("AVX2", "AVX512") and not is_asked_for:
        logger.warning(
            "this CPU has %s, but the kernels are plain C++ and far slower: only g++ compiles "
            "the others, and another compiler was found; install g++ or set CXX=g++",
            capability,
        )


@functools.cache
def load_library() -> bool:
    """Build csrc, if needed, and make it known as `torch.ops.parley`. False if there is none."""
    path = build.build()
    if path is None:
        return False
    load_library_of("parley", path)
    return True


@functools.cache
def load_cuda_library() -> bool:
    """Build csrc/cuda, if needed, and make it known as `torch.ops.parley_cuda`."""
    path = build.build_cuda()
    if path is None:
        return False
    load_library_of("parley_cuda", path)
    return True


def load_library_of(namespace: str, path: Path) -> None:
    """Make the ops of a library known to torch, and that those which write return nothing."""
    load: Callable[[Path], None] = torch.ops.load_library
    load(path)
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(f"{namespace}::") and not schema.returns:
            torch.library.register_fake(schema.name, lambda *args: None)


def allocate_cache(
    num_blocks: int,
    block_size: int,
    num_heads: int,
    width: int,
    dtype: torch.dtype,
    is_key: bool,
    device: torch.device = CPU,
) -> Tensor:  # [num_blocks, block_size, num_heads, width]
    """Zeros as csrc/cpu/ops.h reads them: keys by token last, values by width last.

    On a GPU both lie as their shape says.
    """
    if device.type != "cpu":
        return torch.zeros(num_blocks, block_size, num_heads, width, dtype=dtype, device=device)
    inner = (width, block_size) if is_key else (block_size, width)
    cache = huge_pages.zeros((num_blocks, num_heads, *inner), dtype)
    return cache.permute(0, 3, 1, 2) if is_key else cache.transpose(1, 2)


def stack_layers(cache: Tensor, num_layers: int) -> Tensor:
    """[layers * blocks, ...] → [layers, blocks, ...]: the caches of all layers in one memory."""
    num_blocks = cache.shape[0] // num_layers
    strides = (num_blocks * cache.stride(0), *cache.stride())
    return cache.as_strided((num_layers, num_blocks, *cache.shape[1:]), strides)
