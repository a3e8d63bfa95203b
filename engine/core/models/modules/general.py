"""What the loader needs transformers for: models that the fused decoder does not take as they lie.

It is imported for those alone, because transformers takes as long to import as torch.
"""

import copy
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.config import EngineConfig
from engine.core.attention import paged as attention
from engine.core.attention.paged import PagedLayer, StepContext
from engine.core.models.checkpoint import Checkpoint
from engine.core.models.lora.module_adapters import ModuleAdapters
from engine.core.models.modules import experts, linear, text_half, trial
from engine.core.models.modules.implied_shapes import check_names, check_size, mismatch
from engine.core.models.modules.kept_numbers import Kept, StandIn, attach_kept, find_kept
from engine.core.models.modules.weight_names import places_in
from engine.core.models.stored_weights import LazyWeight, lazy_weights
from engine.core.ops.library import Ops
from engine.errors import UnsupportedModelError
from engine.folder.model_config import own_code_problem
from engine.folder.model_files import describe, reading
from engine.folder.quantized.methods import FIELD

ATTENTION_TYPES = {"full_attention", "sliding_attention"}


def read_configs(checkpoint: Checkpoint) -> tuple[Any, Any]:
    """The whole config, and of it the part for text, which mostly is the same.

    Neither says anything of quantization, as transformers gets weights that are floats, nor of code
    in the folder.

    Raises UnsupportedModelError for what paged attention cannot do, and whatever transformers does.
    """
    is_known = checkpoint.config.get("model_type") in CONFIG_MAPPING
    if not is_known and (problem := own_code_problem(checkpoint.config)):
        raise UnsupportedModelError(f"{checkpoint.config_file}: {problem}")
    config = AutoConfig.from_pretrained(
        checkpoint.folder, local_files_only=True, trust_remote_code=False
    )
    whole = text_half.thinking_config(config)
    text_config = whole.get_text_config()
    for part in (whole, text_config):
        if part.dtype is None:  # it is said once, of all parts
            part.dtype = config.dtype
        for field in (FIELD, "auto_map"):
            if hasattr(part, field):
                delattr(part, field)
    check_names(checkpoint, text_config)
    _check_config(text_config)
    return whole, text_config


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


def check_quantization(config: EngineConfig, device: torch.device, ops: Ops) -> None:
    """Whether weights can be packed here in fewer bits. Raises UnsupportedModelError."""
    reason = None
    if device.type != "cpu":
        reason = "the model runs on a GPU"
    elif ops.name != "cpu":
        reason = "no C++ kernels"
    if config.quantization and reason:
        raise UnsupportedModelError(
            f"quantization {config.quantization!r} is not possible here: {reason}"
        )


def build(
    checkpoint: Checkpoint,
    whole: Any,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device,
    overrides: dict[str, Any],
    *,
    keeps_numbers: bool,
) -> tuple[nn.Module, set[str]]:
    """The model, and the names of what the checkpoint holds besides.

    `whole` is the config of all its parts; `overrides` are fields that count in the place of its
    own. `keeps_numbers`: weights that `attach` packs as whole numbers stay in their files.
    """
    folder, faulty = checkpoint.folder, checkpoint.config_file
    whole.update(overrides)
    config = whole.get_text_config()
    kind, implementation = text_half.model_class(whole), text_half.attn_implementation(whole)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what it warns of, we refuse or accept
    unexpected: set[str] = set()
    try:
        if load_format == "dummy":
            torch.manual_seed(0)
            with device:  # there are GPUs with more memory than the machine around them
                model = kind.from_config(whole, dtype=dtype, attn_implementation=implementation)
            missing = []
        else:
            like: Any = _without_memory(kind, whole, implementation)
            check_size(checkpoint, whole, like)
            _check_generation_config(checkpoint)
            faulty = folder
            weights, kept = _weights_as_floats(like, checkpoint, dtype, keeps_numbers)
            model, report = type(like).from_pretrained(
                None if weights else folder,
                config=whole,
                state_dict=weights or None,
                dtype=dtype,
                attn_implementation=implementation,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are reported with the missing ones
                output_loading_info=True,
            )
            for weight in weights.values():
                weight.check()
            attach_kept(model, kept)
            if checkpoint.is_of_codes and checkpoint.generation_file.exists():
                model.generation_config = GenerationConfig.from_pretrained(folder)
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
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{config.model_type} has no output layer for tokens")
    return model, unexpected


def _weights_as_floats(
    like: nn.Module, checkpoint: Checkpoint, dtype: torch.dtype, keeps_numbers: bool
) -> tuple[dict[str, LazyWeight | StandIn], list[Kept]]:
    """What transformers gets in the place of codes, which it does not read, and what stands there.

    Nothing for a checkpoint of floats, whose files it reads itself.
    """
    weights: dict[str, LazyWeight | StandIn] = {}
    kept: list[Kept] = []
    if checkpoint.is_of_codes:
        places = places_in(like, checkpoint.tensors)
        if keeps_numbers:
            kept = find_kept(like, checkpoint, places)
        weights |= lazy_weights(checkpoint, dtype)
        for each in kept:
            for name in each.tensors:
                del weights[name]
            # One that is put together of several has the name that it has in the model.
            given = each.tensors[0] if len(each.tensors) == 1 else each.name
            weights[given] = StandIn(each.shape, dtype)
        for name in checkpoint.zero_biases - places.keys():
            del weights[name]
    return weights, kept


def attach(
    model: nn.Module,
    config: EngineConfig,
    hf_config: Any,
    context: StepContext,
    later_dtype: torch.dtype | None,
) -> tuple[list[PagedLayer], ModuleAdapters | None]:
    """Make attention, experts and adapters of a built model ours, and try it.

    `later_dtype` is the one that the model gets when its linear layers are packed.
    """
    if context.ops.name == "cpu":
        linear.pack_layers(model, context.ops, config.quantization or "float32", later_dtype)
    if later_dtype is not None:
        model.to(later_dtype)
    attached = attention.attach_layers(model, context)
    experts.attach_experts(model, context)
    device = next(model.parameters()).device
    own = trial.own_logits(model, attached, device)
    adapters = ModuleAdapters(model, context, trial.NUM_TOKENS) if config.enable_lora else None
    layers = trial.try_model(model, attached, hf_config, device, own)
    if adapters is not None:
        adapters.end_trial()
    return layers, adapters


def drop_packed(model: nn.Module) -> None:
    """Give the memory of packed weights back."""
    for module in model.modules():
        if isinstance(module, linear.PackedLinear):
            module.drop()


def _without_memory(kind: Any, config: Any, implementation: Any) -> nn.Module:
    """The model with sizes alone."""
    with torch.device("meta"):
        model: nn.Module = kind.from_config(
            copy.deepcopy(config), attn_implementation=implementation
        )
    return model


def _check_generation_config(checkpoint: Checkpoint) -> None:
    """transformers reads it after the weights, and says nothing of a broken one."""
    if checkpoint.generation_file.exists():
        with reading(checkpoint.generation_file):
            GenerationConfig.from_pretrained(checkpoint.folder, local_files_only=True)
