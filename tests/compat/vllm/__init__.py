"""A package named `vllm` that is our engine, so that tests written for vLLM can be run against us.

It is on `sys.path` for those tests alone and is never installed. Modules of any name can be
imported. What `_OURS` lists in them is ours; everything else that is asked for is a `StandIn`, with
which a file can be read whose other tests use it. Models have the names that the tests give them:
all are the folder that the environment variable PARLEY_COMPAT_MODEL names.
"""

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import engine
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.output_processor import OutputProcessor
from engine.client.text.stop_strings import StopMatcher
from engine.logprobs import FlatLogprobs

PACE = 50.0  # tokens a second of an answer: tests that pause one look for it every 10 ms


class _StandInType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class StandIn(metaclass=_StandInType):
    """Something that we do not have: it can be named, derived from and built, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __class_getitem__(cls, item: Any) -> type:
        return cls


class AsyncEngineArgs(engine.AsyncEngineArgs):
    """Ours, for the one model there is, which is as quick as one of their size and not quicker."""

    def __init__(self, model: str = "", **settings: Any) -> None:
        path = os.environ["PARLEY_COMPAT_MODEL"]
        super().__init__(path, served_model_name=model, pace=PACE, **settings)


def check_stop_strings(
    output_text: str, new_char_count: int, stop: Sequence[str], include_in_output: bool
) -> tuple[str, int] | None:
    """The stop string that the newest characters complete first, and where the text is to be cut.

    -1 as the place means not at all. No stop string may be complete before those characters.
    """
    if not new_char_count or not stop:
        return None
    shown, found = StopMatcher(stop, include_in_output=include_in_output).feed(output_text)
    if found is None:
        return None
    is_whole = include_in_output and len(shown) == len(output_text)
    return found, -1 if is_whole else len(shown)


@contextlib.contextmanager
def _set_default_torch_num_threads(num_threads: int) -> Iterator[None]:
    """Nothing to do: torch runs in the core."""
    yield


_OURS: dict[str, dict[str, Any]] = {
    "vllm": {name: getattr(engine, name) for name in engine.__all__}
    | {"AsyncEngineArgs": AsyncEngineArgs, "EngineArgs": AsyncEngineArgs},
    "vllm.engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs, "EngineArgs": AsyncEngineArgs},
    "vllm.engine.async_llm_engine": {"AsyncLLMEngine": engine.AsyncLLMEngine},
    "vllm.exceptions": {
        "MaxQueuedTokensError": engine.MaxQueuedTokensError,
        "QueueOverflowError": engine.QueueOverflowError,
        "RetryableRequestError": engine.RetryableRequestError,
        "VLLMError": engine.EngineError,
        "VLLMValidationError": engine.ValidationError,
    },
    "vllm.inputs": {"TextPrompt": engine.TextPrompt, "TokensPrompt": engine.TokensPrompt},
    "vllm.logprobs": {"FlatLogprobs": FlatLogprobs, "Logprob": engine.Logprob},
    "vllm.lora.request": {"LoRARequest": engine.LoRARequest},
    "vllm.outputs": {
        "CompletionOutput": engine.CompletionOutput,
        "EmbeddingRequestOutput": engine.EmbeddingRequestOutput,
        "PoolingRequestOutput": engine.PoolingRequestOutput,
        "RequestOutput": engine.RequestOutput,
    },
    "vllm.platforms": {"current_platform": SimpleNamespace(is_cuda=lambda: True)},
    "vllm.pooling_params": {"PoolingParams": engine.PoolingParams},
    "vllm.sampling_params": {
        "RepetitionDetectionParams": engine.RepetitionDetectionParams,
        "RequestOutputKind": engine.RequestOutputKind,
        "SamplingParams": engine.SamplingParams,
    },
    "vllm.utils.torch_utils": {"set_default_torch_num_threads": _set_default_torch_num_threads},
    "vllm.v1.engine.async_llm": {"AsyncLLM": engine.AsyncLLM},
    "vllm.v1.engine.detokenizer": {"check_stop_strings": check_stop_strings},
    "vllm.v1.engine.exceptions": {
        "EngineDeadError": engine.EngineDeadError,
        "EngineGenerateError": engine.EngineGenerateError,
    },
    "vllm.v1.engine.output_processor": {
        "OutputProcessor": OutputProcessor,
        "RequestOutputCollector": RequestOutputCollector,
    },
}


def _stand_in(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandInType(name, (StandIn,), {})


class _Modules(MetaPathFinder, Loader):
    """Makes every module under `vllm`."""

    prefix: ClassVar[str] = __name__ + "."

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self.prefix):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_OURS.get(module.__name__, {}), __getattr__=_stand_in)


globals().update(_OURS["vllm"], __getattr__=_stand_in)
sys.meta_path.insert(0, _Modules())
