"""From a Hugging Face folder to a model whose attention is ours, or to one clear line why not.

Only safetensors, no code from the folder, no network. What paged attention cannot do is refused
here, before the first request: a model that loads must give the text that transformers gives.

A folder that holds one of the fused families and nothing else is read without transformers
(`fused/plain_config.py`); every other one is transformers' business (`modules/general.py`).
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.config import EngineConfig
from engine.core.attention import paged as attention
from engine.core.attention.backends import UNIT_TOKENS, AttentionBackend
from engine.core.attention.choice import AttentionNeeds, choose_attention
from engine.core.attention.paged import PagedLayer, StepContext
from engine.core.models import classifier, weight_files
from engine.core.models.checkpoint import Checkpoint, check_folder
from engine.core.models.fused import plain_config, plain_model, shape, support
from engine.core.models.fused.decoder import FusedDecoder, fuse
from engine.core.models.fused.gpu_decoder import GpuDecoder, fuse_for_gpu
from engine.core.models.lora.fused_adapters import FusedAdapters
from engine.core.models.lora.shelf import AdapterHost
from engine.core.ops.library import Ops
from engine.core.sampling.classifier_head import ClassifierHead
from engine.errors import UnsupportedModelError, refuse
from engine.folder.model_files import describe, reading
from engine.pooling import GENERATING_TASKS

logger = logging.getLogger(__name__)

LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}  # rotates all by the longest sequence of the batch
FALLBACK_POSITIONS = 4096  # for a model that names no limit


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for paged attention, and what the rest of the core must know of it."""

    model: nn.Module
    context: StepContext
    layers: list[PagedLayer]
    device: torch.device
    dtype: torch.dtype
    num_parameters: int
    vocab_size: int
    max_positions: int
    eos_token_ids: list[int]
    checkpoint: Checkpoint
    # In the place of `model`, whose layers it has emptied.
    fused: FusedDecoder | GpuDecoder | None = None
    head: ClassifierHead | None = None  # of a checkpoint that classifies, and generates nothing
    tasks: tuple[str, ...] = GENERATING_TASKS  # what it can be asked for, in vLLM's names
    adapters: AdapterHost | None = None  # where those may be added; None: there are none
    is_half: bool = False  # of a checkpoint that also reads pictures or sounds, which was left out

    @property
    def attn_backend(self) -> str:
        """The name of what computes attention."""
        chosen = self.context.attention
        return self.context.ops.name if chosen is None else chosen.name

    @property
    def block_size(self) -> int:
        """Tokens of a block of the KV cache, as attention reads it."""
        chosen = self.context.attention
        return UNIT_TOKENS if chosen is None else chosen.page_size


def load_model(config: EngineConfig, ops: Ops) -> LoadedModel:
    """Load `config.model`. Raises `UnsupportedModelError` with one line for a person."""
    started = time.monotonic()
    folder = Path(config.model)
    checkpoint = check_folder(folder, needs_weights=config.load_format != "dummy")
    built = _build_plain(config, checkpoint, ops) or _build_general(config, checkpoint, ops)
    model, hf_config = built.model, built.config
    model.eval().requires_grad_(False)

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    max_positions = _max_positions(hf_config)
    if max_positions < _named_positions(hf_config):
        logger.info(
            "%d positions of %d: the rotary ones after them depend on the length of the whole text",
            max_positions,
            _named_positions(hf_config),
        )
    vocab_size = min(_num_rows(model, "input"), _num_rows(model, "output"))
    context = StepContext(ops)
    layers: list[PagedLayer] = []
    fused: FusedDecoder | GpuDecoder | None = None
    adapters: AdapterHost | None = None
    if built.is_fused:
        try:
            with torch.inference_mode():
                fused = _fuse(built, config, context)
            if config.enable_lora and isinstance(fused, FusedDecoder):
                name: str = getattr(model, "layers_name", "model.layers")
                adapters = FusedAdapters(fused, hf_config.intermediate_size, name)
        except (ValueError, OSError) as error:  # parameters of another model, or no memory
            raise UnsupportedModelError(f"{folder}: {describe(error)}") from None
    else:
        from engine.core.models.modules import general

        later_dtype = None if built.read_dtype == built.dtype else built.dtype
        layers, adapters = general.attach(model, config, hf_config, context, later_dtype)
        needs = AttentionNeeds.of(shape for layer in layers for shape in layer.shapes)
        context.attention = choose_attention(config, needs, ops, built.device)
    eos_sources = (getattr(model, "generation_config", None), hf_config)
    loaded = LoadedModel(
        model=model,
        context=context,
        layers=layers,
        device=built.device,
        dtype=built.dtype,
        num_parameters=num_parameters,
        vocab_size=vocab_size,
        max_positions=max_positions,
        eos_token_ids=sorted(_token_ids(eos_sources)),
        checkpoint=checkpoint,
        fused=fused,
        head=built.head,
        tasks=_tasks(built.head, config.runner),
        adapters=adapters,
        is_half=built.is_half,
    )
    logger.info(
        "loaded %.1fM parameters in %.1f s",
        loaded.num_parameters / 1e6,
        time.monotonic() - started,
    )
    return loaded


@dataclass(frozen=True, slots=True)
class _BuiltModel:
    """A model with its weights, before its attention is ours."""

    model: Any  # an nn.Module with a transformers model's methods
    config: Any  # transformers' of its text, or what stands for it
    device: torch.device
    dtype: torch.dtype
    read_dtype: torch.dtype  # which it has until its layers are packed
    is_fused: bool
    head: ClassifierHead | None = None
    is_half: bool = False


def _build_plain(config: EngineConfig, checkpoint: Checkpoint, ops: Ops) -> _BuiltModel | None:
    """The model without transformers, which takes as long to import as torch.

    None if the fused decoder does not compute it, or anything about its folder is unusual: then
    transformers says what it is, or what is wrong with it.
    """
    if config.device not in ("auto", "cpu") or config.load_format == "dummy":
        return None
    device = torch.device("cpu")
    plain = plain_config.read_plain_config(checkpoint)
    try:
        if plain is None or not _choose_fused(config, plain, device, ops):
            return None
    except UnsupportedModelError:  # the same will be said there
        return None
    dtype = _choose_dtype(config.dtype, plain, device, is_fused=True)
    _log_loading(checkpoint, dtype, device)
    keeps_numbers = _is_as_stored(config)
    model = plain_model.build_plain_model(checkpoint, plain, dtype, keeps_numbers=keeps_numbers)
    return _BuiltModel(model, plain, device, dtype, dtype, is_fused=True)


def _build_general(config: EngineConfig, checkpoint: Checkpoint, ops: Ops) -> _BuiltModel:
    """The model as transformers makes it. Raises UnsupportedModelError."""
    from engine.core.models.modules import general, text_half

    with reading(checkpoint.config_file):
        whole_config, hf_config = general.read_configs(checkpoint)
        is_classifier = classifier.classifies(checkpoint.config)
        if is_classifier and config.runner == "generate":
            problem = "is of a model that classifies, and generates no text"
            raise UnsupportedModelError(f"{checkpoint.config_file} {problem}")
        device = choose_device(config.device)
        general.check_quantization(config, device, ops)
        weight_files.check_dtypes(checkpoint)
        is_fused = _choose_fused(config, whole_config, device, ops)
        dtype = _choose_dtype(config.dtype, hf_config, device, is_fused)
    _log_loading(checkpoint, dtype, device)
    attention.register()
    read_dtype = dtype
    if config.quantization and dtype == torch.float32 and not is_fused:
        read_dtype = _own_dtype(hf_config)  # float32 would need twice the memory for a moment
    overrides = {"tie_word_embeddings": True} if is_classifier else {}
    is_packed = device.type == "cpu" and ops.name == "cpu"
    model, unexpected = general.build(
        checkpoint,
        whole_config,
        read_dtype,
        config.load_format,
        device,
        overrides,
        keeps_numbers=is_packed and _is_as_stored(config),
    )
    head: ClassifierHead | None = None
    if is_classifier:
        head = classifier.read_head(checkpoint, whole_config, _width(model))
        unexpected.discard(classifier.WEIGHT)
    left_out = text_half.left_out(model)
    weight_files.check_all_taken(checkpoint, unexpected, hf_config, left_out)
    if left_out:
        logger.info(text_half.describe(whole_config, left_out))
    if is_fused and whole_config is not hf_config:
        model = text_half.PlainHalf(model)
    model.to(device)
    is_half = bool(left_out)
    return _BuiltModel(model, hf_config, device, dtype, read_dtype, is_fused, head, is_half)


def _is_as_stored(config: EngineConfig) -> bool:
    """Whether nobody asks for other numbers than those of the file."""
    return config.dtype == "auto" and config.quantization is None


def _log_loading(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
    name = str(dtype).removeprefix("torch.")
    logger.info("loading %s as %s on %s", checkpoint.folder, name, device)
    if (quantization := checkpoint.quantization) is not None:
        logger.info(
            "%d of its weights are quantized by %s", quantization.num_weights, quantization.method
        )
        if quantization.num_unused:
            logger.info(
                "%d scales of activations, keys and values are not used: these stay %s",
                quantization.num_unused,
                name,
            )


def _tasks(head: ClassifierHead | None, runner: str) -> tuple[str, ...]:
    if head is not None:
        return ("embed", *head.tasks)
    return ("embed",) if runner == "pooling" else GENERATING_TASKS


def drop_weights(loaded: LoadedModel) -> None:
    """Give the memory of all weights back, packed ones as well. Only shapes stay of the model.

    Each is let go of by itself: modules refer to each other in circles, which nobody collects.
    """
    if loaded.fused is not None:
        loaded.fused.drop_weights()
    shape.drop_weights(loaded.model)
    if loaded.fused is None:
        from engine.core.models.modules import general

        general.drop_packed(loaded.model)


def _fuse(
    built: _BuiltModel, config: EngineConfig, context: StepContext
) -> FusedDecoder | GpuDecoder:
    model, dtype, device, ops = built.model, built.dtype, built.device, context.ops
    if device.type == "cpu":
        format = config.quantization or str(dtype).removeprefix("torch.")
        cache_dtype = torch.int8 if config.kv_cache_dtype == "int8" else dtype
        return fuse(model, ops.decoder_step, format, cache_dtype)

    def choose(of: shape.DecoderShape) -> AttentionBackend:
        dims = frozenset(((of.head_dim, of.head_dim),))
        needs = AttentionNeeds(of.cache_dtype, dims, has_windows=any(of.windows))
        context.attention = choose_attention(config, needs, ops, device)
        return context.attention

    return fuse_for_gpu(model, ops, choose)


def choose_device(name: str) -> torch.device:
    """The named device; "auto" is the CPU, where an answer does not depend on what runs beside it.

    Raises UnsupportedModelError if the named one is not there.
    """
    if name == "auto" and torch.cuda.is_available():
        logger.info("a GPU is seen, and not used: device 'cuda' uses it")
    if name == "cuda" and not torch.cuda.is_available():
        reason = "no GPU is seen" if torch.version.cuda else "this torch was built without CUDA"
        raise UnsupportedModelError(f"device 'cuda' was asked for, but {reason}")
    return torch.device("cuda" if name == "cuda" else "cpu")


def _choose_fused(config: EngineConfig, hf_config: Any, device: torch.device, ops: Ops) -> bool:
    """Whether `engine/fused` computes the model; `UnsupportedModelError` if it must and cannot."""
    text_config = hf_config.get_text_config()
    obstacle = support.obstacle(text_config) or support.whole_obstacle(hf_config)
    if config.model_impl == "transformers":
        obstacle = "model_impl is 'transformers'"
    is_on_cpu = device.type == "cpu"
    if obstacle is None and config.quantization == "int4":
        obstacle = support.int4_obstacle(text_config)
    if obstacle is None and not is_on_cpu:
        obstacle = support.gpu_obstacle(text_config)
    if obstacle is None and is_on_cpu and config.dtype == "float16":
        obstacle = "float16 weights"
    if obstacle is None and config.enable_lora and not is_on_cpu:
        obstacle = "adapters on a GPU"
    if obstacle is None and ops.name not in ("cpu", "cuda"):
        obstacle = "no C++ kernels" if is_on_cpu else "csrc/cuda is not built, or not wanted"
    must = None
    if config.kv_cache_dtype != "auto":
        must = f"kv_cache_dtype {config.kv_cache_dtype!r}"
        obstacle = obstacle if is_on_cpu else "the model runs on a GPU"
    if config.model_impl == "fused":
        must = "model_impl 'fused'"
    if obstacle and must:
        raise UnsupportedModelError(f"{must} is not possible here: {obstacle}")
    return obstacle is None


def _choose_dtype(name: str, config: Any, device: torch.device, is_fused: bool) -> torch.dtype:
    """The named dtype; for "auto" the checkpoint's, or float32 where the CPU would emulate it."""
    if name != "auto":
        chosen: torch.dtype = getattr(torch, name)
        return chosen
    dtype = _own_dtype(config)
    if device.type == "cpu" and dtype != torch.float32:
        if is_fused and dtype == torch.bfloat16:  # its kernels convert as they read
            return torch.bfloat16
        return torch.bfloat16 if _has_native_bfloat16() else torch.float32
    return dtype


def _own_dtype(config: Any) -> torch.dtype:
    """The checkpoint's."""
    dtype = getattr(config, "dtype", None) or torch.float32
    named: object = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(named, torch.dtype) or not named.is_floating_point:
        raise refuse("dtype", dtype, "must be the name of a floating point type of torch")
    return named


def _has_native_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))


def _named_positions(config: Any) -> int:
    limit: int = getattr(config, "max_position_embeddings", None) or FALLBACK_POSITIONS
    return limit


def _max_positions(config: Any) -> int:
    """The longest sequence whose positions the model has learned, and rotates as it learned.

    Where rotations depend on the length of the text, it is the length up to which they do not: keys
    that were computed for another length, or are shared with a longer text, would be wrong.
    """
    limit = _named_positions(config)
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *rope.values()]:
        if isinstance(parameters, dict) and parameters.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            original = parameters.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limit = min(limit, original or limit)
    return limit


def _width(model: Any) -> int:
    """Of what the output layer reads."""
    return int(model.get_output_embeddings().weight.shape[1])


def _num_rows(model: Any, side: str) -> int:
    embeddings = getattr(model, f"get_{side}_embeddings")()
    return int(embeddings.weight.shape[0])


def _token_ids(sources: Iterable[Any]) -> set[int]:
    ids: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return ids
