"""`RunnerMemory`: gives back what a runner holds while the engine sleeps, and takes it again.

A KV cache is made anew, empty. Weights are read from the folder again and packed as before; files
that have changed since the start are refused, because the answers would be another model's.
"""

import ctypes
import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from engine.core.models.checkpoint import Checkpoint, check_unchanged
from engine.core.models.loader import LoadedModel, drop_weights
from engine.core.runner import system_memory
from engine.core.runner.cache_warmer import CacheWarmer
from engine.core.runner.model_runner import ModelRunner


class RunnerMemory:
    """`load` reads the model as at the start, `stamps` are those of its files then."""

    def __init__(
        self,
        runner: ModelRunner,
        load: Callable[[], LoadedModel],
        checkpoint: Checkpoint,
        stamps: Mapping[Path, tuple[int, int]],
    ) -> None:
        self._runner = runner
        self._load = load
        self._checkpoint = checkpoint
        self._stamps = stamps
        self._has_cache = self._has_weights = self._wants_cache = True
        self._is_idle: Callable[[], bool] = lambda: False
        self._warmer: CacheWarmer | None = None

    def bytes_of_another(self) -> int | None:
        """What a second core like this would take beside it: all of its own, and this one's cache,
        which is not taken yet. None on a GPU, where there is seldom room for two.
        """
        if self._runner.loaded.device.type != "cpu":
            return None
        cache = sum(part.untyped_storage().nbytes() for part in self._runner.caches())
        return system_memory.own() + cache

    def start_warming(self, is_idle: Callable[[], bool]) -> None:
        """Take the memory of each cache from now on while `is_idle`, on a CPU."""
        self._is_idle = is_idle
        self._warm()

    def give_back(self, level: int) -> None:
        """1: the KV cache; 2: the weights, too."""
        device = self._runner.loaded.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if self._warmer is not None:
            self._warmer.stop()
            self._warmer = None
        self._runner.drop_cache()
        self._has_cache = self._wants_cache = False
        if level > 1:
            drop_weights(self._runner.loaded)
            self._has_weights = False
        return_free_memory(device)

    def take_again(self, tag: str) -> None:
        """Raises UnsupportedModelError if files have changed or memory is short.

        A cache is made to the measure of a model: without weights it comes when they do.
        """
        if tag == "weights" and not self._has_weights:
            self._read_weights()
        self._wants_cache |= tag == "kv_cache"
        if self._wants_cache and self._has_weights and not self._has_cache:
            self._allocate_cache()
            self._warm()

    def _allocate_cache(self) -> None:
        try:
            self._runner.allocate_cache()
        except BaseException:
            self._runner.drop_cache()  # a part may be there: the next attempt needs its room
            raise
        self._has_cache = True

    def _read_weights(self) -> None:
        check_unchanged(self._checkpoint, self._stamps)
        loaded = self._load()
        check_unchanged(self._checkpoint, self._stamps)  # while they were read
        self._runner.replace_model(loaded)
        self._has_weights = True
        gc.unfreeze()
        gc.collect()  # what the model before has left
        gc.freeze()

    def _warm(self) -> None:
        if self._runner.loaded.device.type == "cpu":
            self._warmer = CacheWarmer(self._runner.caches(), self._is_idle)
            self._warmer.start()


def return_free_memory(device: torch.device) -> None:
    """To the system: torch keeps a GPU's, and the C library what lay in small pieces."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
