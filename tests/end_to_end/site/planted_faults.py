"""Faults inside the processes of a server that no outsider can cause: planted by `sitecustomize`.

A prompt of a certain length is the poison, so a test chooses who gets it and when. What runs is the
product's own code, up to the one call that fails. Imported by every process of the server: nothing
heavy is imported here.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.root import ROOT

MAX_RESTART_SECONDS = 0.1  # between two engine cores

# Tokens of a prompt, and what becomes of the step that reads it.
NAN_TOKENS = 41  # its logits are not finite
MEMORY_TOKENS = 43  # there is no memory for it
CUDA_TOKENS = 53  # it fails as on a broken GPU, once
DEADLY_TOKENS = 47  # the core is killed


def plant(folder: Path) -> str:
    """Write the `sitecustomize`; returns the PYTHONPATH for the server."""
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "from tests.end_to_end.site import planted_faults",
        f"planted_faults.take_effect({str(folder)!r})",
    ]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return str(folder)


def take_effect(folder: str) -> None:
    """In a process of the server, before anything else of it runs."""
    from server.engines.native import backoff as restarts

    restarts.MAX_DELAY_SECONDS = MAX_RESTART_SECONDS
    if "engine.core" in sys.orig_argv:
        _poison_steps(Path(folder) / "cuda-failed")


def _poison_steps(cuda_failed: Path) -> None:
    from engine.core.step_loop import EngineCore

    begin = EngineCore.__init__

    def begin_poisoned(core: Any, scheduler: Any, launch: Any, *args: Any, **kwargs: Any) -> None:
        _poison_logits()  # the sampler is there by now
        begin(core, scheduler, _poisoned(launch, cuda_failed), *args, **kwargs)

    EngineCore.__init__ = begin_poisoned  # type: ignore[assignment, method-assign]


def _poisoned(launch: Callable[[Any], Any], cuda_failed: Path) -> Callable[[Any], Any]:
    def launch_poisoned(scheduled: list[Any]) -> Any:
        sequences = [item.sequence for item in scheduled]
        prompts = {s.num_prompt_tokens for s in sequences if not s.is_decoding}
        if MEMORY_TOKENS in prompts:
            raise MemoryError("planted")
        if CUDA_TOKENS in prompts and not cuda_failed.exists():
            cuda_failed.touch()
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if DEADLY_TOKENS in prompts:
            os.kill(os.getpid(), signal.SIGKILL)
        return launch(scheduled)

    return launch_poisoned


def _poison_logits() -> None:
    from engine.core.sampling.sampler import Sampler

    sample = Sampler.sample

    def sample_poisoned(sampler: Any, logits: Any, sequences: Any, *others: Any) -> Any:
        for row, sequence in enumerate(sequences):
            if sequence.num_prompt_tokens == NAN_TOKENS:
                logits[row] = float("nan")
        return sample(sampler, logits, sequences, *others)

    Sampler.sample = sample_poisoned  # type: ignore[assignment, method-assign]
