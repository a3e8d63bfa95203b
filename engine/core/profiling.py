"""`Profiler`: torch's profiler around the core's steps, writing a trace for chrome://tracing."""

import os
from itertools import count
from pathlib import Path
from typing import Any


class Profiler:
    """Records from `start` to `stop`, in the thread of the step loop; each blocks for a moment.

    It costs memory for every operation of every step, so it is for seconds and not for hours.
    """

    def __init__(self) -> None:
        self._profile: Any = None  # torch.profiler.profile
        self._prefix = ""
        self._numbers = count(1)

    def start(self, prefix: str) -> None:
        """`prefix` begins the trace's path, folders included. RuntimeError if one is running."""
        if self._profile is not None:
            raise RuntimeError("a profile is being recorded already")
        import torch  # the step loop's tests need no torch

        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._prefix = prefix
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()

    def stop(self) -> str:
        """The path of the trace that was written. RuntimeError if none is being recorded."""
        if self._profile is None:
            raise RuntimeError("no profile is being recorded")
        profile, self._profile = self._profile, None
        profile.stop()
        path = f"{self._prefix}-{os.getpid()}-{next(self._numbers)}.json"
        profile.export_chrome_trace(path)
        return path
