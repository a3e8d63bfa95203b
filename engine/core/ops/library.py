"""The Python face of csrc: each op as its torch reference, its specification, and as built.

`choose(backend)` returns one `Ops` with the same signatures either way, so that nothing else knows
whether there was a compiler. The references are in reference.py and beside it.

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

import torch
from torch import Tensor

from csrc import build
from engine.core.ops.decoder_reference import decoder_step_reference
from engine.core.ops.decoder_step import DecoderStep, decoder_step
from engine.core.ops.reference import (
    Penalize,
    linear_reference,
    paged_attention_reference,
    penalize_reference,
    store_kv_reference,
)
from engine.core.ops.sampling_reference import ChooseTokens, choose_tokens_reference
from engine.core.tensors.kv_cache import CPU

logger = logging.getLogger(__name__)
LEAST_CAPABILITY = (8, 0)  # of a GPU, for which csrc/cuda is compiled
GPU_BACKENDS = ("flash_attn", "varlen", "cuda")
Linear = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Tensor], None]


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
    decoder_step: DecoderStep
    penalize: Penalize
    choose_tokens: ChooseTokens


NAMES = tuple(field.name for field in fields(Ops) if field.name != "name")


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
    the name says what computes attention (engine/core/attention/choice.py), and the ops are
    csrc/cuda's.
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
        named = {name: getattr(built, name) for name in NAMES}
        return Ops("cpu", **named | {"decoder_step": decoder_step})
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
