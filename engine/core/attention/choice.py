"""Which attention backend a model gets: the first that supports all of its layers.

Where csrc/cuda can, it computes single queries, and that backend the others; one chosen by name
computes all. The choice is made once, when the model is loaded, and logged in one line. flash-attn
2 and 4 share the import name `flash_attn`, so the names of their distributions distinguish them.
"""

import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata

import torch

from engine.config import EngineConfig
from engine.core.attention.backends import (
    AttentionBackend,
    FlashAttention2,
    FlashAttention4,
    OpsAttention,
    VarlenAttention,
)
from engine.core.attention.cuda import CudaAttention, CudaPrompts
from engine.core.attention.paged import LayerShape
from engine.core.attention.probe import find_page_size, is_right
from engine.core.ops.library import REFERENCE, Ops

logger = logging.getLogger(__name__)

HALF_TYPES = (torch.bfloat16, torch.float16)
FLASH_4_WIDTHS = (64, 96, 128)
FLASH_WIDEST = 256
VARLEN_TORCH = (2, 12)  # the first whose varlen attention reads pages
WRONG = "it fails here, or does not give what the reference gives"
ORDER = ("flash_attn", "varlen", "cuda", "torch")  # on a GPU


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What the layers of a model ask of attention, all together."""

    dtype: torch.dtype
    head_dims: frozenset[tuple[int, int]]  # of keys and values
    has_windows: bool = False
    has_softcap: bool = False
    has_sinks: bool = False

    @classmethod
    def of(cls, shapes: Iterable[LayerShape]) -> "AttentionNeeds":
        known = list(shapes)
        return cls(
            known[0].dtype,
            frozenset((shape.head_dim, shape.value_head_dim) for shape in known),
            any(shape.sliding_window for shape in known),
            any(shape.softcap for shape in known),
            any(shape.has_sinks for shape in known),
        )

    @property
    def widest(self) -> int:
        return max(max(dims) for dims in self.head_dims)

    @property
    def is_even(self) -> bool:
        """Whether keys are as wide as their values."""
        return all(key == value for key, value in self.head_dims)


class Unusable(ValueError):
    """Why a backend cannot be used, in a few words."""


def choose_attention(
    config: EngineConfig, needs: AttentionNeeds, ops: Ops, device: torch.device
) -> AttentionBackend:
    """The backend that `config.attn_backend` names, or the first one that can, for "auto".

    Raises ValueError with one clear line if the wanted one cannot.
    """
    if device.type == "cpu":
        return OpsAttention(ops)
    wanted = config.attn_backend
    names = ORDER if wanted == "auto" else (wanted,)
    reasons = []
    for name in names:
        try:
            backend = _MAKERS[name](config, needs, ops, device)
        except Unusable as reason:
            reasons.append(f"{name}: {reason}")
            continue
        if wanted == "auto" and _can_decode(needs, ops, backend):
            backend = CudaAttention(torch.ops.parley_cuda, config.max_num_seqs, backend)
        others = f" ({'; '.join(reasons)})" if reasons else ""
        logger.info("attention by %s, %d tokens a block%s", backend.name, backend.page_size, others)
        return backend
    raise ValueError(f"attn_backend {wanted!r} cannot be used: {'; '.join(reasons)}")


def _can_decode(needs: AttentionNeeds, ops: Ops, backend: AttentionBackend) -> bool:
    """Whether csrc/cuda has a kernel for single queries over this backend's pages."""
    if isinstance(backend, CudaAttention):
        return False  # it does so already
    if ops.name != "cuda" or needs.dtype not in HALF_TYPES or not needs.is_even:
        return False
    can_decode, page_size = torch.ops.parley_cuda.can_decode, backend.page_size
    return all(can_decode(head_dim, page_size) for head_dim, _ in needs.head_dims)


def _make_flash(
    config: EngineConfig, needs: AttentionNeeds, ops: Ops, device: torch.device
) -> AttentionBackend:
    _require(needs.dtype in HALF_TYPES, "it has no float32")
    _require(needs.is_even, "its keys are as wide as its values")
    capability = torch.cuda.get_device_capability(device)
    has_version_2 = has_distribution("flash-attn")
    if has_distribution("flash-attn-4"):
        try:
            return _make_flash_4(needs, device, capability)
        except Unusable:
            if not has_version_2:
                raise
    _require(has_version_2, "neither flash-attn-4 nor flash-attn is installed")
    _require(capability >= (8, 0), "it needs Ampere or newer")
    _require(needs.widest <= FLASH_WIDEST, f"its heads are at most {FLASH_WIDEST} wide")
    _require(not needs.has_sinks, "flash-attn 2 has no sinks")
    backend = FlashAttention2(_function("flash_attn", "flash_attn_varlen_func"))
    _require(is_right(backend, needs.dtype, device, needs.widest), WRONG)
    return backend


def _make_flash_4(
    needs: AttentionNeeds, device: torch.device, capability: tuple[int, int]
) -> AttentionBackend:
    _require(capability[0] in (9, 10), "flash-attn 4 reads blocks on Hopper and Blackwell only")
    known = all(key in FLASH_4_WIDTHS for key, _ in needs.head_dims)
    _require(known, f"flash-attn 4 has heads of {FLASH_4_WIDTHS}")
    backend = FlashAttention4(_function("flash_attn.cute", "flash_attn_varlen_func"))
    _require(is_right(backend, needs.dtype, device, needs.widest), WRONG)
    return backend


def _make_varlen(
    config: EngineConfig, needs: AttentionNeeds, ops: Ops, device: torch.device
) -> AttentionBackend:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    _require(version >= VARLEN_TORCH, "it reads blocks from torch 2.12 on")
    _require(needs.dtype in HALF_TYPES, "it has no float32")
    _require(needs.is_even, "its keys are as wide as its values")
    _require(needs.widest <= FLASH_WIDEST, f"its heads are at most {FLASH_WIDEST} wide")
    _require(not needs.has_softcap, "it has no softcap")
    _require(not needs.has_sinks, "it has no sinks")
    function = _function("torch.nn.attention.varlen", "varlen_attn_out")
    num_splits = 1 if config.batch_invariant else None

    def make(page_size: int) -> AttentionBackend:
        return VarlenAttention(function, page_size, num_splits)

    page_size = find_page_size(make, needs.dtype, device, needs.widest)
    if page_size is None:
        raise Unusable("it takes no size of blocks here")
    return make(page_size)


def _make_cuda(
    config: EngineConfig, needs: AttentionNeeds, ops: Ops, device: torch.device
) -> AttentionBackend:
    _require(ops.name == "cuda", "csrc/cuda is not built")
    library = torch.ops.parley_cuda
    return CudaAttention(library, config.max_num_seqs, CudaPrompts(library))


def _make_reference(
    config: EngineConfig, needs: AttentionNeeds, ops: Ops, device: torch.device
) -> AttentionBackend:
    return OpsAttention(REFERENCE)


_MAKERS: dict[
    str, Callable[[EngineConfig, AttentionNeeds, Ops, torch.device], AttentionBackend]
] = {
    "flash_attn": _make_flash,
    "varlen": _make_varlen,
    "cuda": _make_cuda,
    "torch": _make_reference,
}


def has_distribution(name: str) -> bool:
    """Whether a package of this name is installed; its modules may be called otherwise."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unusable(otherwise)


def _function(module: str, name: str) -> Callable[..., object]:
    try:
        found: Callable[..., object] = getattr(importlib.import_module(module), name)
    except Exception as error:  # a library for another CUDA or torch fails in many ways
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unusable(f"{module} cannot be imported: {line}") from None
    return found
