"""From a Hugging Face folder to a model whose attention is ours, or to one clear line why not.

Only safetensors, no code from the folder, no network. What paged attention cannot do is refused
here, before the first request: a model that loads must give the text that transformers gives.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.quantizers.auto import AutoHfQuantizer

from engine.config import EngineConfig
from engine.core.attention import paged as attention
from engine.core.attention.backends import UNIT_TOKENS, AttentionBackend
from engine.core.attention.choice import AttentionNeeds, choose_attention
from engine.core.attention.paged import PagedLayer, StepContext
from engine.core.models import classifier, experts, linear, trial, weight_files
from engine.core.models.checkpoint import Checkpoint, check_folder
from engine.core.models.fused import shape, support
from engine.core.models.fused.decoder import FusedDecoder, fuse
from engine.core.models.fused.gpu_decoder import GpuDecoder, fuse_for_gpu
from engine.core.models.implied_shapes import check_names, check_size, mismatch
from engine.core.models.lora.fused_adapters import FusedAdapters
from engine.core.models.lora.module_adapters import ModuleAdapters
from engine.core.models.lora.shelf import AdapterHost
from engine.core.ops.library import Ops
from engine.core.sampling.classifier_head import ClassifierHead
from engine.errors import UnsupportedModelError, refuse
from engine.folder.model_files import describe, reading
from engine.pooling import GENERATING_TASKS

logger = logging.getLogger(__name__)

ATTENTION_TYPES = {"full_attention", "sliding_attention"}
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
    with reading(checkpoint.config_file):
        whole_config, hf_config = _read_configs(folder)
        check_names(checkpoint, hf_config)
        _check_config(hf_config)
        is_classifier = classifier.classifies(checkpoint.config)
        if is_classifier and config.runner == "generate":
            problem = "is of a model that classifies, and generates no text"
            raise UnsupportedModelError(f"{checkpoint.config_file} {problem}")
        device = choose_device(config.device)
        _check_quantization(config, whole_config, device, ops)
        if not getattr(whole_config, "quantization_config", None):  # else transformers reads them
            weight_files.check_dtypes(checkpoint)
        is_fused = _choose_fused(config, whole_config, device, ops)
        dtype = _choose_dtype(config.dtype, hf_config, device, is_fused)
    logger.info("loading %s as %s on %s", folder, str(dtype).removeprefix("torch."), device)
    attention.register()
    read_dtype = dtype
    if config.quantization and dtype == torch.float32 and not is_fused:
        read_dtype = _own_dtype(hf_config)  # float32 would need twice the memory for a moment
    overrides = {"tie_word_embeddings": True} if is_classifier else {}
    model, unexpected = _build(
        checkpoint, hf_config, read_dtype, config.load_format, device, overrides
    )
    head: ClassifierHead | None = None
    if is_classifier:
        head = classifier.read_head(checkpoint, whole_config, _width(model))
        unexpected.discard(classifier.WEIGHT)
    weight_files.check_all_taken(checkpoint, unexpected, hf_config)
    model.to(device)
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
    adapters: FusedAdapters | ModuleAdapters | None = None
    if is_fused:
        try:
            with torch.inference_mode():
                fused = _fuse(model, config, dtype, context)
            if config.enable_lora and isinstance(fused, FusedDecoder):
                adapters = FusedAdapters(fused, hf_config.intermediate_size)
        except (ValueError, OSError) as error:  # parameters of another model, or no memory
            raise UnsupportedModelError(f"{folder}: {describe(error)}") from None
    else:
        if ops.name == "cpu":
            of_all = None if read_dtype == dtype else dtype
            linear.pack_layers(model, ops, config.quantization or "float32", of_all)
        if read_dtype != dtype:
            model.to(dtype)
        attached = attention.attach_layers(model, context)
        experts.attach_experts(model, context)
        hooks = ModuleAdapters(model, context, trial.NUM_TOKENS) if config.enable_lora else None
        layers = trial.try_model(model, attached, hf_config, device)
        if hooks is not None:
            hooks.end_trial()
            adapters = hooks
        needs = AttentionNeeds.of(shape for layer in layers for shape in layer.shapes)
        context.attention = choose_attention(config, needs, ops, device)
    eos_sources = (getattr(model, "generation_config", None), hf_config)
    loaded = LoadedModel(
        model=model,
        context=context,
        layers=layers,
        device=device,
        dtype=dtype,
        num_parameters=num_parameters,
        vocab_size=vocab_size,
        max_positions=max_positions,
        eos_token_ids=sorted(_token_ids(eos_sources)),
        checkpoint=checkpoint,
        fused=fused,
        head=head,
        tasks=_tasks(head, config.runner),
        adapters=adapters,
    )
    logger.info(
        "loaded %.1fM parameters in %.1f s",
        loaded.num_parameters / 1e6,
        time.monotonic() - started,
    )
    return loaded


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
    for module in loaded.model.modules():
        if isinstance(module, linear.PackedLinear):
            module.drop()


def _fuse(
    model: nn.Module, config: EngineConfig, dtype: torch.dtype, context: StepContext
) -> FusedDecoder | GpuDecoder:
    ops, device = context.ops, next(model.parameters()).device
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


def _read_configs(folder: Path) -> tuple[Any, Any]:
    """The whole config, and of it the part for text, which mostly is the same."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config, config.get_text_config()


def _check_config(config: Any) -> None:
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{name} is an encoder-decoder")
    others = set(getattr(config, "layer_types", None) or ()) - ATTENTION_TYPES
    if others:
        raise UnsupportedModelError(f"{name} has layers without paged attention: {sorted(others)}")
    if getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedModelError(f"{name} shares keys and values between layers")
    if getattr(config, "alibi", False):
        raise UnsupportedModelError(f"{name} uses alibi positions")
    reads_all = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    if reads_all or getattr(config, "is_causal", True) is False:
        raise UnsupportedModelError(f"{name} reads a text in both directions, so it continues none")


def _check_quantization(
    config: EngineConfig, hf_config: Any, device: torch.device, ops: Ops
) -> None:
    """`hf_config` is the whole one: transformers reads no other's `quantization_config`."""
    declared = getattr(hf_config, "quantization_config", None)
    if declared and not _is_known_quantization(declared):
        method = declared.get("quant_method") or declared.get("quant_algo")
        raise UnsupportedModelError(
            f"{config.model}: its weights are quantized by {method!r}, which transformers does not "
            "read; take the checkpoint in bfloat16 or float16"
        )
    reason = None
    if device.type != "cpu":
        reason = "the model runs on a GPU"
    elif ops.name != "cpu":
        reason = "no C++ kernels"
    elif declared:
        reason = "its weights are quantized already"
    if config.quantization and reason:
        raise UnsupportedModelError(
            f"quantization {config.quantization!r} is not possible here: {reason}"
        )


def _is_known_quantization(declared: Any) -> bool:
    try:
        return bool(AutoHfQuantizer.supports_quant_method(declared))
    except (ValueError, AttributeError):  # it names no method, or is no object
        return False


def choose_device(name: str) -> torch.device:
    """The named device; "auto" is the CPU, as long as no GPU has run this.

    Raises UnsupportedModelError if the named one is not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        reason = "no GPU is seen" if torch.version.cuda else "this torch was built without CUDA"
        raise UnsupportedModelError(f"device 'cuda' was asked for, but {reason}")
    return torch.device("cuda" if name == "cuda" else "cpu")


def _choose_fused(config: EngineConfig, hf_config: Any, device: torch.device, ops: Ops) -> bool:
    """Whether `engine/fused` computes the model; `UnsupportedModelError` if it must and cannot."""
    text_config = hf_config.get_text_config()
    obstacle = support.obstacle(text_config)
    if text_config is not hf_config and config.load_format != "dummy":
        obstacle = f"{hf_config.model_type} has other parts besides its text"
    if config.model_impl == "transformers":
        obstacle = "model_impl is 'transformers'"
    is_on_cpu = device.type == "cpu"
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


def _build(
    checkpoint: Checkpoint,
    config: Any,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device,
    overrides: dict[str, Any],
) -> tuple[nn.Module, set[str]]:
    """The model, and the names of what the checkpoint holds besides.

    `overrides` are fields of config.json that count in the place of its own.
    """
    folder, faulty = checkpoint.folder, checkpoint.config_file
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what it warns of, we refuse or accept
    unexpected: set[str] = set()
    try:
        if load_format == "dummy":
            torch.manual_seed(0)
            config.update(overrides)
            with device:  # there are GPUs with more memory than the machine around them
                model = AutoModelForCausalLM.from_config(
                    config, dtype=dtype, attn_implementation=attention.NAME
                )
            missing = []
        else:
            check_size(checkpoint, attention.NAME)
            _check_generation_config(checkpoint)
            faulty = folder
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=attention.NAME,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are reported with the missing ones
                output_loading_info=True,
                **overrides,
            )
            missing = report["missing_keys"]
            unexpected = report["unexpected_keys"]
            for name, stored, wanted in sorted(report["mismatched_keys"]):
                raise mismatch(checkpoint, config, name, stored, wanted)
    except UnsupportedModelError:
        raise
    except Exception as error:  # broken files fail in many ways; each becomes one line
        problem = f"{faulty}: {describe(error)}"
        if attention.NAME in str(error):  # it knows its own few implementations only
            problem = f"{config.model_type} does not take our attention"
        if "Unrecognized configuration class" in str(error):
            problem = f"{faulty}: transformers has no causal language model for {config.model_type}"
        raise UnsupportedModelError(problem) from None
    if missing:
        raise UnsupportedModelError(
            f"{checkpoint.weights_file}: lacks {len(missing)} weights of its shape, "
            f"first {min(missing)}"
        )
    if model.config.get_text_config()._attn_implementation != attention.NAME:
        raise UnsupportedModelError(f"{config.model_type} does not take our attention")
    return model, unexpected


def _check_generation_config(checkpoint: Checkpoint) -> None:
    """transformers reads it after the weights, and says nothing of a broken one."""
    if checkpoint.generation_file.exists():
        with reading(checkpoint.generation_file):
            GenerationConfig.from_pretrained(checkpoint.folder, local_files_only=True)


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
