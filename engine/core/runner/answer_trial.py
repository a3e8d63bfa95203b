"""A trial of the loaded model: does it answer with numbers at all?

A bad number in config.json or in the weights turns everything into NaN, without an error; every
answer would fail, one by one. So the logits of two short texts are checked before the first
request, computed as for requests: through the KV cache, and also for fused models, which `trial.py`
does not run.
"""

from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.models.checkpoint import Checkpoint
from engine.core.models.loader import LoadedModel
from engine.core.models.stored_weights import read_weights
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.errors import UnsupportedModelError
from engine.folder.model_files import reading
from engine.sampling_params import SamplingParams

TRIAL_TOKENS = 4  # of each text, within one block of the KV cache
_SUSPECTS = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_parameters"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"),
)


def trial_parts(vocab_size: int, config: EngineConfig) -> list[ScheduledSequence]:
    """Two texts of different tokens, in the first two blocks of the KV cache.

    Shorter ones, or only the first, where the sizes of `config` allow no more.
    """
    assert config.num_blocks is not None and config.max_model_len is not None
    num_tokens = min(TRIAL_TOKENS, config.max_model_len)
    parts = []
    for number, first in enumerate((0, vocab_size // 2)):
        ids = [(first + offset) % vocab_size for offset in range(num_tokens)]
        sequence = Sequence("", f"trial-{number}", ids, SamplingParams())
        sequence.block_table = array("i", [number])
        parts.append(ScheduledSequence(sequence, len(ids)))
    return parts[: min(config.num_blocks, config.max_num_seqs)]


def check_answers(loaded: LoadedModel, compute: Callable[[], Tensor]) -> None:
    """Raise `UnsupportedModelError` if no row of logits, [num_rows, vocab], can be chosen from.

    Or if they cannot be computed.
    """
    file = loaded.checkpoint.config_file
    with reading(file):  # for the first time all of the model computes
        logits = compute()
    is_usable = torch.isfinite(logits).any(-1) & ~logits.isnan().any(-1)
    if is_usable.any():
        return
    if name := _unusable_weight(loaded.checkpoint):
        raise UnsupportedModelError(name)
    raise UnsupportedModelError(f"{file}: {_suspicion(loaded.model)}")


def _unusable_weight(checkpoint: Checkpoint) -> str | None:
    """The first weight with NaN or infinity in it, and its file."""
    for name, weight in read_weights(checkpoint):
        if weight.is_floating_point() and not torch.isfinite(weight.float()).all():
            file = checkpoint.tensors[name].file
            return f"{file}: {name} is not finite, and so is no answer"
    return None


def _suspicion(model: Any) -> str:
    config = model.config.get_text_config()
    said = {name: value for name in _SUSPECTS if (value := getattr(config, name, None)) is not None}
    shown = ", ".join(f"{name} {value}" for name, value in said.items())
    return f"no answer of this model is a number, though its weights are; look at {shown}"
