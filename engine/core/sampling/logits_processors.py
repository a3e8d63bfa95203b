"""`LogitsProcessors`: the classes that the operator listed, and what they do to rows of logits.

Each row is processed by itself, so that a failure ends the request whose row it is.
"""

import functools
import importlib
import inspect
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.scheduling.sequence import Problem, Sequence
from engine.logits_processors import AdapterLogitsProcessor, RequestLogitsProcessor

logger = logging.getLogger(__name__)

FAILED = "logits_processor_failed"  # the code of a request's end
NONE_LEFT: Problem = (FAILED, "the logits processors leave no token to choose")


@dataclass(frozen=True, slots=True)
class RowProcessor:
    """What one class does to the rows of one request."""

    name: str
    call: RequestLogitsProcessor
    reads_prompt: bool
    is_argmax_invariant: bool

    def apply(self, logits: Tensor, sequence: Sequence) -> None:
        """Write the processed logits in their place. logits: [vocab] float32"""
        ids, num_prompt_tokens = sequence.token_ids, sequence.num_prompt_tokens
        arguments: list[Any] = [ids[num_prompt_tokens:], logits]
        if self.reads_prompt:
            arguments.insert(0, ids[:num_prompt_tokens])
        processed = self.call(*arguments)
        if processed is logits:
            return
        if not isinstance(processed, Tensor) or processed.shape != logits.shape:
            raise TypeError(f"it must return logits of the shape {list(logits.shape)}")
        logits.copy_(processed)


class LogitsProcessors:
    """Of one engine."""

    def __init__(self, processors: Iterable[AdapterLogitsProcessor]) -> None:
        self._processors = list(processors)

    @classmethod
    def load(cls, config: EngineConfig, device: torch.device) -> "LogitsProcessors":
        """Import and make those of the config. Raises ValueError with one line, which names it."""
        is_pinned = device.type == "cuda"
        made = []
        for name in config.logits_processors:
            try:
                made.append(_import(name)(config, device, is_pinned))
            except Exception as error:
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
                raise ValueError(
                    f"the logits processor {name} cannot be used: {problem}"
                ) from error
        return cls(made)

    def prepare(self, sequence: Sequence) -> Problem | None:
        """Give a new sequence what its parameters ask for, or say why not."""
        if sequence.pooling is not None:
            return None
        rows = []
        for processor in self._processors:
            name = type(processor).__name__
            try:
                processor.validate_params(sequence.params)
                if (call := processor.new_req_logits_processor(sequence.params)) is not None:
                    rows.append(_row_processor(name, call, processor.is_argmax_invariant()))
            except ValueError as error:
                return ("invalid_request", f"{name}: {error}")
            except Exception as error:
                return _failure(name, sequence, error)
        if rows:
            sequence.logits_processors = rows
            sequence.waits_for_tokens = True
        return None


def process_rows(
    logits: Tensor,
    rows: Iterable[tuple[int, Sequence]],
    failures: dict[int, Problem],
    *,
    is_last: bool,
) -> None:
    """Apply processors to these rows, in place: before penalties and temperature, or after them.

    What fails is written to `failures`, by row. logits: [num_rows, vocab] float32
    """
    for row, sequence in rows:
        for processor in sequence.logits_processors:
            if processor.is_argmax_invariant is not is_last or row in failures:
                continue
            if is_last and sequence.params.is_greedy:
                continue
            temperature = sequence.params.temperature if is_last else 1.0
            try:
                scaled = logits[row] if temperature == 1 else logits[row] / temperature
                processor.apply(scaled, sequence)
                if temperature != 1:  # which the choice divides by
                    logits[row] = scaled * temperature
            except Exception as error:
                failures[row] = _failure(processor.name, sequence, error)


def _import(name: str) -> type[AdapterLogitsProcessor]:
    module, _, path = name.partition(":")
    found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    if not isinstance(found, type) or not issubclass(found, AdapterLogitsProcessor):
        raise TypeError("it is not derived from AdapterLogitsProcessor")
    return found


def _row_processor(
    name: str, call: RequestLogitsProcessor, is_argmax_invariant: bool
) -> RowProcessor:
    reads_prompt = len(inspect.signature(call).parameters) == 3
    return RowProcessor(name, call, reads_prompt, bool(is_argmax_invariant))


def _failure(name: str, sequence: Sequence, error: Exception) -> Problem:
    logger.error("%r: the logits processor %s failed", sequence, name, exc_info=error)
    return (FAILED, f"the logits processor {name} failed: {type(error).__name__}")
