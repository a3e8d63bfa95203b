"""Whether a model of the hub will fit, judged before its weights are downloaded.

By the same forecast as of files that are here: it gets the headers of the hub's. Who cannot be
judged is downloaded: nobody is refused for what nobody has said.
"""

import os
import shutil
import tempfile
from pathlib import Path

import structlog

from engine.client.hub.plan import DownloadPlan
from server.config.models import gb
from server.config.settings import Settings
from server.engines.managed import EngineSetupError
from server.engines.native.forecast import PROCESS_BYTES, read_facts

logger = structlog.get_logger("server")

GGUF_SHARE = 0.3  # of weights of 16 bits, in a GGUF file of 4


def check_download(settings: Settings, plan: DownloadPlan, memory_bytes: int | None) -> None:
    """Raise `EngineSetupError` if there is no disk for the download or no memory for the model.

    `memory_bytes` could be free at most; None: nobody can tell.
    """
    disk = free_disk(plan.cache)
    if plan.missing_bytes > disk:
        hint = _other_choice(plan, disk) if plan.is_gguf else ""
        if not plan.is_gguf and plan.size_bytes * GGUF_SHARE <= disk:
            hint = ": try a GGUF repository of it, in 4 bits"
        raise _misfit(plan, plan.missing_bytes, "disk", disk, hint)
    if memory_bytes is None or settings.device == "cuda":
        return
    if plan.is_gguf:
        as_it_is = settings.quantize is None and settings.dtype == "auto"
        needs = plan.size_bytes + PROCESS_BYTES if as_it_is else 0
        hint = _other_choice(plan, memory_bytes - PROCESS_BYTES)
    else:
        needs, hint = _foreseen(settings, plan, memory_bytes)
    if needs > memory_bytes:
        raise _misfit(plan, needs, "memory", memory_bytes, hint)


def free_disk(folder: Path) -> int:
    """Where a folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _foreseen(settings: Settings, plan: DownloadPlan, memory_bytes: int) -> tuple[int, str]:
    """What the model will need, 0 if nobody can tell; and what would need less."""
    with tempfile.TemporaryDirectory(prefix="parley-") as folder:
        try:
            plan.outline(Path(folder))
            facts = read_facts(settings, Path(folder))
        except Exception as error:  # loading it says what is wrong with it, if anything is
            logger.debug("model cannot be foreseen", model=plan.model, error=str(error))
            return 0, ""
    ways = [way for way, num_bytes in facts.smaller.items() if num_bytes <= memory_bytes]
    return facts.needs_bytes or 0, f": try {ways[0]}" if ways else ""


def _other_choice(plan: DownloadPlan, num_bytes: int) -> str:
    """The largest GGUF model of the repository that has no more."""
    fitting = {size: name for name, size in plan.choices.items() if 0 < size <= num_bytes}
    name = fitting[max(fitting)] if fitting else ""
    return f": try {plan.model}:{os.path.basename(name)}" if name else ""


def _misfit(plan: DownloadPlan, needs: int, what: str, free: int, hint: str) -> EngineSetupError:
    return EngineSetupError(f"{plan.model} needs {gb(needs)} of {what}, {gb(free)} are free{hint}")
