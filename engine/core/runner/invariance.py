"""Which numbers of rows give the same bits? A probe of the loaded model, before its first request.

A step computes the tokens of many sequences as the rows of one matrix. Libraries choose other
kernels for other numbers of rows, which add in another order, so that a token could depend on the
other requests of its step, on the chunks of its prompt, and on a preemption. The probe finds the
smallest multiple to which rows must be padded so that it does not (1 where all kernels are of csrc,
whose sums have one order): first of each layer by itself, on random rows, then of the whole model,
which has to read one text in chunks of many sizes.

That reading also finds a model that keeps state of a text outside its KV cache, or counts positions
by itself: in chunks it reads another text. It is refused, on every device and with every setting.
"""

import dataclasses
import logging
import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Collection
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.core.models.loader import LoadedModel
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import Batch, build_batch, round_up
from engine.errors import UnsupportedModelError
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
FALLBACK_MULTIPLE = 16  # where none is enough
ROW_COUNTS = (1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 16, 17, 31, 33, 48)
CHUNKINGS = ((65,), (1, 3, 5, 7, 16, 33), (32, 17, 16))  # of one text
# Of a token's logits, by their spread: far above rounding, and far below another text.
MAX_DIFFERENCE = 1e-3
MAX_ROUNDED_DIFFERENCE = 0.1  # where rows or numbers are rounded to 16 bits or 8
MAX_PROBED_ROWS = 4096  # however many a step may have: they are held in memory
MAX_LAYER_WORK = 2_000_000_000  # multiplications at once; wide layers see fewer rows than others


@dataclass(frozen=True, slots=True)
class RowInvariance:
    """What the probe found. `is_proven` is False where padding does not help: best effort."""

    row_multiple: int = 1
    is_proven: bool = False
    num_layers: int = 0  # of different shape
    num_dependent: int = 0  # those whose rows depend on the number of rows, without padding


class Layer:
    """One module of a shape, and the way its rows are given to it."""

    def __init__(self, module: nn.Module, example: Tensor, row_dim: int) -> None:
        self.module = module
        self._example = example
        self._row_dim = row_dim
        self._rows: Tensor | None = None

    def depends_on_rows(self, multiple: int, max_rows: int) -> bool:
        """Whether the bits of a row depend on how many rows there are, in multiples of this."""
        max_rows = self._affordable_rows(max_rows)
        whole = self._compute(0, max_rows)
        for count in sorted({round_up(number, multiple) for number in ROW_COUNTS}):
            start = min(count // 2, max_rows - count)  # nor may a row's place matter
            expected = whole.narrow(self._row_dim, start, count)
            if not torch.equal(self._compute(start, count), expected):
                return True
        return False

    def _affordable_rows(self, limit: int) -> int:
        """How many rows this layer can be given in reasonable time: a multiple of 64."""
        work = max(1, sum(tensor.numel() for tensor in _weights(self.module)))
        return round_up(max(64, min(limit, MAX_LAYER_WORK // work)), 64)

    def _compute(self, start: int, count: int) -> Tensor:
        if self._rows is None or self._rows.shape[self._row_dim] < start + count:
            shape = list(self._example.shape)
            shape[self._row_dim] = start + count
            generator = torch.Generator().manual_seed(0)
            self._rows = torch.randn(shape, generator=generator).to(self._example)
        # a copy, because a step's rows begin where memory was given, not within another tensor
        rows = self._rows.narrow(self._row_dim, start, count).clone()
        out: Tensor = self.module(rows)
        return out


class RowProbe:
    """Probes one model, with its ops, caches and threads as they will serve."""

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, forward: Callable[[Batch], Tensor]
    ) -> None:
        assert config.max_model_len is not None
        self._loaded = loaded
        self._block_size = config.block_size
        self._max_rows = min(config.max_num_batched_tokens, MAX_PROBED_ROWS)
        self._forward = forward
        is_rounded = config.quantization is not None or config.kv_cache_dtype != "auto"
        is_rounded = is_rounded or loaded.checkpoint.is_of_codes
        is_exact = loaded.dtype == torch.float32 and not is_rounded and loaded.device.type == "cpu"
        self._max_difference = MAX_DIFFERENCE if is_exact else MAX_ROUNDED_DIFFERENCE
        length = min(sum(CHUNKINGS[0]), config.max_model_len)
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(0, loaded.vocab_size, (length,), generator=generator)
        self._text: list[int] = text.tolist()

    def run(self) -> RowInvariance:
        """Find the multiple, set it, and log one line. The KV cache must be unused.

        Raises UnsupportedModelError as `check` does.
        """
        started = time.monotonic()
        context = self._loaded.context
        with torch.inference_mode():
            layers = self.find_layers()
            dependent = [layer for layer in layers if layer.depends_on_rows(1, self._max_rows)]
            enough_for_layers: list[int] = []
            is_proven = False
            for multiple in MULTIPLES:
                if any(layer.depends_on_rows(multiple, self._max_rows) for layer in dependent):
                    continue
                enough_for_layers.append(multiple)
                context.row_multiple = multiple
                if is_proven := self.reads_alike():
                    break
            if not is_proven:
                context.row_multiple = min(enough_for_layers, default=FALLBACK_MULTIPLE)
                self._check_that_only_bits_differ()
        found = RowInvariance(context.row_multiple, is_proven, len(layers), len(dependent))
        _log(found, time.monotonic() - started)
        return found

    def find_layers(self) -> list[Layer]:
        """The layers that turn rows into rows: of each shape the first."""
        num_rows = 5  # no layer's width, and no other dimension
        layers: dict[Any, Layer] = {}

        def note(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
                return
            rows = args[0]
            row_dim = 1 if rows.dim() > 2 and rows.shape[0] == 1 else 0
            if not rows.is_floating_point() or rows.shape[row_dim] != num_rows:
                return
            sizes = tuple(tuple(tensor.shape) for tensor in _weights(module))
            key = (type(module), sizes, tuple(rows.shape), rows.dtype)
            layers.setdefault(key, Layer(module, rows, row_dim))

        leaves = [module for module in self._loaded.model.modules() if not any(module.children())]
        hooks = [module.register_forward_hook(note) for module in leaves]
        try:
            self._read(0, min(num_rows, len(self._text)))
        finally:
            for hook in hooks:
                hook.remove()
        return list(layers.values())

    def reads_alike(self) -> bool:
        """Whether the model gives each token of a text the same logits in each chunking."""
        first, *others = (self._read_in_chunks(chunks) for chunks in CHUNKINGS)
        return all(torch.equal(first, other) for other in others)

    def check(self) -> None:
        """Raise UnsupportedModelError if a text that is read in parts becomes another one.

        The KV cache must be unused.
        """
        with torch.inference_mode():
            self._check_that_only_bits_differ()

    def _check_that_only_bits_differ(self) -> None:
        first, *others = (self._read_in_chunks(chunks) for chunks in CHUNKINGS)
        for other, chunks in zip(others, CHUNKINGS[1:], strict=True):
            differences = (other - first).std(-1) / first.std(-1)  # of each token
            begins = [place for place in accumulate(chunks) if place < len(first)]
            # The median, because a router's near tie may send a token or two to other experts.
            of_begins = differences[begins].median() if begins else 0.0
            if max(differences.median(), of_begins) > self._max_difference:
                raise UnsupportedModelError(
                    "the model gives a text another meaning when it is read in parts: "
                    "it keeps something of it outside attention"
                )

    def _read_in_chunks(self, chunks: Collection[int]) -> Tensor:  # [num_tokens, vocab]
        bounds = [min(end, len(self._text)) for end in accumulate(chunks, initial=0)]
        return torch.cat([self._read(*part) for part in pairwise(bounds) if part[0] < part[1]])

    def _read(self, start: int, end: int) -> Tensor:
        """The logits of all tokens of a part of the text, whose beginning was read before."""
        sequence = Sequence("", "probe", self._text[:end], SamplingParams())
        sequence.num_computed_tokens = start
        num_blocks = round_up(len(self._text), self._block_size) // self._block_size
        sequence.block_table = array("i", range(num_blocks))
        scheduled = [ScheduledSequence(sequence, end - start)]
        multiple = self._loaded.context.row_multiple
        batch = build_batch(scheduled, self._block_size, multiple)
        rows = torch.arange(len(batch.input_ids))
        batch = dataclasses.replace(batch, logits_rows=rows, num_sampled=end - start)
        batch = _on_device(batch, self._loaded.device)
        return self._forward(batch).clone()  # the next pass may write over them


def _on_device(batch: Batch, device: torch.device) -> Batch:
    tensors: dict[str, Any] = {
        field.name: value.to(device)
        for field in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    return dataclasses.replace(batch, **tensors)


def _weights(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]  # packed weights are buffers


def _log(found: RowInvariance, seconds: float) -> None:
    layers = (
        f"{found.num_dependent} of {found.num_layers} layer shapes depend on the rows of a step"
    )
    if found.is_proven:
        result = f"with multiples of {found.row_multiple} answers are alike in any batch"
        if found.row_multiple == 1:
            result = "answers are alike in any batch"
        logger.info("batch invariance: %s; %s (probed in %.2f s)", layers, result, seconds)
    else:
        logger.warning("batch invariance: %s, and padding does not help; best effort", layers)
