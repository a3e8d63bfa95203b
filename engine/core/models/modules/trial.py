"""A few tokens through a model that was just loaded, before the first request.

No configuration says what a model does with its inputs. So it is run once while each attention
layer only records its arguments: each must have called our attention once, with no unknown
argument, and positions must be the given ones, because a chunk's do not begin at 0.
`answer_trial.py` checks whether our attention then computes numbers at all.
"""

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.core.attention.paged import PagedLayer
from engine.core.models.modules.text_half import skipped_layers
from engine.errors import UnsupportedModelError
from engine.folder.model_files import describe

NUM_TOKENS = 7  # no layer's width, and no number of experts
COUNTERS = ("arange", "cumsum")
MAX_DIFFERENCE = 1e-3  # of logits, by their spread


def own_logits(model: nn.Module, layers: list[PagedLayer], device: torch.device) -> Tensor | None:
    """Logits of some tokens whose positions the model counts itself; None if it cannot."""
    ids = torch.zeros((1, NUM_TOKENS), dtype=torch.int64, device=device)
    try:
        with torch.inference_mode():
            logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    except Exception:  # what is wrong with the model, the trial itself will say
        return None
    finally:
        for layer in layers:
            layer.shapes.clear()
    return logits


def try_model(
    model: nn.Module,
    layers: list[PagedLayer],
    config: Any,
    device: torch.device,
    own: Tensor | None,
) -> list[PagedLayer]:
    """Run it, and return those of its attached layers that computed attention.

    Others belong to its towers, for pictures and sounds. `own` are the `own_logits`, which must be
    the same. Raises UnsupportedModelError, in one line.
    """
    name = config.model_type
    ids = torch.zeros((1, NUM_TOKENS), dtype=torch.int64, device=device)
    positions = torch.arange(NUM_TOKENS, device=device)[None]
    watch = _Watch(positions)
    try:
        with torch.inference_mode(), watch:
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{name} {_reason(error)}") from error
    num_layers = config.num_hidden_layers - len(skipped_layers(config))
    called = [layer for layer in layers if layer.shapes]
    if [len(layer.shapes) for layer in called] != [1] * num_layers:
        raise UnsupportedModelError(f"{name}: {_who_called(called, num_layers)}")
    if watch.has_counted or (not watch.was_used and _differ(logits)):
        raise UnsupportedModelError(
            f"{name} does not keep to the positions it is given: it counts from the first token of "
            "each part that a text is read in"
        )
    if own is not None and _largest(own - logits, logits) > MAX_DIFFERENCE:
        raise UnsupportedModelError(f"{name} does not count the positions of a text from 0")
    return called


class _Watch(TorchFunctionMode):
    """Notes whether anything is computed from the positions, and whether tokens are counted."""

    def __init__(self, watched: Tensor) -> None:
        super().__init__()
        self.was_used = False
        self.has_counted = False
        self._watched = watched

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        is_question = function.__name__ in ("__get__", "size", "dim")  # its shape, its device
        if not is_question and self._is_among((args, tuple(kwargs.values()))):
            self.was_used = True
        result = function(*args, **kwargs)
        if function.__name__ in COUNTERS and NUM_TOKENS in result.shape:
            self.has_counted = True
        return result

    def _is_among(self, values: Any) -> bool:
        if isinstance(values, tuple | list):  # also indices are tuples
            return any(map(self._is_among, values))
        return values is self._watched


def _differ(logits: Tensor) -> bool:
    """Whether the same token, without attention, is another one at another place."""
    return _largest(logits - logits[:1], logits) > MAX_DIFFERENCE


def _largest(differences: Tensor, logits: Tensor) -> float:
    """Of the differences of logits, by their spread."""
    return float(differences.float().abs().max() / logits.float().std())


def _who_called(called: list[PagedLayer], num_layers: int) -> str:
    num_repeated = sum(len(layer.shapes) > 1 for layer in called)
    if num_repeated:
        return f"{num_repeated} layers call our attention more than once"
    return f"{len(called)} of {num_layers} layers call our attention"


def _reason(error: Exception) -> str:
    """What the model wants, as far as an error of its own code shows it: where, and the words."""
    line = describe(error)
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            place = type(owner).__name__
    missing = isinstance(error, AttributeError | TypeError) and "None" in line
    wants = "needs a mask, a cache or an input that paged attention does not give it"
    return f"{wants if missing else 'cannot be run'}: {place or 'it'} fails with {line}"
