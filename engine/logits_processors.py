"""`AdapterLogitsProcessor`: the operator's own code between the model's logits and a token.

Names and meanings are vLLM's. An engine has the processors that its argument `logits_processors`
lists, as `module:Class`; the core imports these, and nothing else. A request chooses among them,
and says what they are to do, by its `extra_args`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams

# Given the ids of the answer so far and the logits of its next token, [vocab] float32, it returns
# such logits, which may be the same ones, changed. With three parameters, the first one is the
# prompt's ids. It must depend on its arguments alone: after a preemption, or in the next core, it
# is called again for a token, and what it has called before does not come again.
RequestLogitsProcessor = Callable[..., Any]


class AdapterLogitsProcessor(ABC):
    """What a class in `logits_processors` derives from. The core makes one of it."""

    def __init__(  # noqa: B027 (there is nothing to keep)
        self, vllm_config: EngineConfig, device: Any, is_pin_memory: bool
    ) -> None:
        """`vllm_config` is the core's `EngineConfig`; `device` is torch's, where logits are."""

    @classmethod  # noqa: B027 (by default nothing is wrong)
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise `ValueError` for a request's parameters that are wrong for this processor."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether it never changes which logit is the largest, so that greedy answers need it not.

        One that is works after penalties and temperature, any other before them.
        """

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """What works on the logits of a request with these parameters; None if nothing does."""


def class_name(processor: Any) -> str:
    """A class that the caller gave, as the core imports it. `ValueError` if it could not."""
    if isinstance(processor, str):
        module, _, name = processor.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ValueError(f"{processor!r} is not written as module:Class")
        return processor
    if not isinstance(processor, type):
        raise ValueError(f"{processor!r} is neither a class nor its name, module:Class")
    if processor.__module__ == "__main__" or "<" in processor.__qualname__:
        problem = "the core cannot import it: put it into a module"
        raise ValueError(f"{processor.__qualname__} of {processor.__module__}: {problem}")
    return f"{processor.__module__}:{processor.__qualname__}"
