"""`EngineControl`: the part of `AsyncLLM` that acts on the core as a whole, not on one request.

Methods for which there is nothing to do, as `reset_mm_cache`, do nothing.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from engine.client.status import EngineStatus
from engine.errors import ValidationError, refuse
from engine.lora import LoRARequest

PauseMode = Literal["abort", "wait", "keep"]
WAKE_TAGS = ("weights", "kv_cache", "scheduling")  # the last is vLLM's for level 0


class EngineControl(EngineStatus):
    """The commands of an engine. See `AsyncLLM`."""

    # ---- pausing

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """Stop generating, for all clients of the core, until `resume_generation`.

        abort  every request ends now with its partial text
        wait   returns when the requests that are here have ended
        keep   every request stops where it is, and goes on from there when generation resumes

        With `abort` and `wait` a new request raises `RetryableRequestError` in its stream, with
        `keep` it is queued. `clear_cache` makes the core forget all prefixes, and with `keep` the
        stopped requests compute theirs again. Pausing a paused engine does nothing. A pause ends
        with the client that asked for it, and a core that is restarted is not paused.
        """
        _check_mode(mode)
        await self._call("pause", mode, clear_cache)

    async def resume_generation(self) -> None:
        """End a pause; without one, do nothing. A `pause_generation` that still waits returns.

        `EngineGenerateError` while the engine sleeps: its memory is not there.
        """
        await self._call("resume")

    async def is_paused(self) -> bool:
        return bool(await self._call("is_paused"))

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Return when the core has no request left, of any client. Raises `TimeoutError`."""
        async with asyncio.timeout(drain_timeout):
            await self._call("drain")

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause all clients of the core, and give its memory back until `wake_up`.

        level 0  a pause, nothing more
        level 1  the KV cache is given back
        level 2  the weights, too; they are read from the model's folder when they wake up

        `mode` is that of `pause_generation`, also where the engine is paused or asleep already; at
        level 1 and 2 prefixes are forgotten, and with `keep` the stopped requests compute theirs
        again. Sleep ends with the client that asked for it, and a core that is restarted is awake.
        """
        _check_mode(mode)
        if type(level) is not int or level not in (0, 1, 2):
            raise refuse("level", level, "must be 0, 1 or 2")
        await self._call("sleep", level, mode)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """End sleep, and with it the pause; without sleep, do nothing.

        With `tags`, of "weights" and "kv_cache", only these parts; the engine wakes up with the
        last of them. `EngineGenerateError` if one cannot be taken again, for instance because a
        file of the model has changed: it stays asleep, and another call tries once more.
        """
        if tags is not None:
            is_list = isinstance(tags, list | tuple)
            if not is_list or not all(tag in WAKE_TAGS for tag in tags):
                raise refuse("tags", tags, f"must be a list of {', '.join(WAKE_TAGS)}")
        await self._call("wake_up", None if tags is None else list(tags))

    async def is_sleeping(self) -> bool:
        """Whether `sleep` was called and not everything is awake again."""
        return bool(await self._call("is_sleeping"))

    # ---- caches

    async def reset_prefix_cache(
        self,
        device: Any = None,
        *,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
    ) -> bool:
        """Forget every cached prefix. False: nothing has happened, because requests are running.

        With `reset_running_requests` these give up their blocks, and compute them again. A bool as
        `device` is vLLM's later first argument, `reset_running_requests`; any other device has no
        effect. Nor has `reset_connector`: there is no connector.
        """
        if isinstance(device, bool):
            reset_running_requests = device
        return bool(await self._call("reset_prefix_cache", reset_running_requests))

    async def reset_mm_cache(self) -> None:
        """Nothing to do: there are no inputs but text."""

    async def reset_encoder_cache(self) -> None:
        """Nothing to do: there is no encoder."""

    # ---- LoRA

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Have the core keep an adapter in memory; True.

        The core reads it between two steps. Requests need no such call: they have it read. Raises
        `ValidationError` for an adapter that cannot be used, and if there is no room for it.
        """
        await self._adapters.add(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Have the core forget an adapter, for all of its clients; False if it is not in memory.

        Running requests keep it until they end. Its number may then be that of another folder.
        """
        return await self._adapters.remove(lora_id)

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory until it is removed; False if it is not there."""
        return await self._adapters.pin(lora_id)

    async def list_loras(self) -> set[int]:
        """The numbers of the adapters in the core's memory."""
        return await self._adapters.numbers()

    # ---- observation

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a public method of the core's `Worker`; its result, in a list of one.

        Arguments and result travel as msgpack. Raises `EngineGenerateError` if there is no such
        method or it fails, `TimeoutError` after `timeout` seconds.
        """
        if not isinstance(method, str):
            raise NotImplementedError("collective_rpc with a function is not implemented")
        async with asyncio.timeout(timeout):
            return [await self._call("collective_rpc", method, list(args), kwargs or {})]

    async def start_profile(self, profile_prefix: str | None = None, **limits: Any) -> None:
        """Record the core's steps with torch's profiler, until `stop_profile`.

        The trace becomes a file whose path begins with `profile_prefix`; without one, with
        "parley-profile" in the folder for temporary files. Nothing is generated while the recording
        starts and while the file is written, which takes seconds. The limits that vLLM has are not
        implemented. Raises `EngineGenerateError` if a profile is being recorded already.
        """
        if limits:
            raise NotImplementedError(f"start_profile({', '.join(limits)}) is not implemented")
        await self._call("start_profile", _trace_prefix(profile_prefix))

    async def stop_profile(self) -> str:
        """End the profile and write it; the path of the file, for chrome://tracing."""
        return str(await self._call("stop_profile"))

    async def add_logger(self, logger_name: str, logger: Any) -> None:
        """Tell another logger what happens: see `StatLoggers`. KeyError: the name is taken."""
        self._stat_loggers.add(logger_name, logger)

    async def remove_logger(self, logger_name: str) -> None:
        """Raises KeyError if there is no such logger."""
        self._stat_loggers.remove(logger_name)

    async def do_log_stats(self, scheduler_outputs: Any = None, model_output: Any = None) -> None:
        """Have all loggers log. The arguments have no effect."""
        self._stat_loggers.log(self.stats)


def _check_mode(mode: str) -> None:
    if mode not in ("abort", "wait", "keep"):
        raise ValidationError("mode must be abort, wait or keep", "mode", mode)


def _trace_prefix(given: str | None) -> str:
    path = Path(given) if given else Path(tempfile.gettempdir(), "parley-profile")
    return str(path.absolute())
