"""Which kind of engine answers: the one place that names them all.

A kind is a module or a folder beside this file with the functions of `EngineKind`.
"""

from typing import TYPE_CHECKING

from server.config.engines import GROUP, SOLE, EngineEntry
from server.engines import native, textual
from server.engines.kind import EngineKind
from server.engines.managed import EngineSetupError
from server.engines.placement.kind import GroupKind
from server.engines.remote.kinds import REMOTE_KINDS

if TYPE_CHECKING:
    from server.config.settings import Settings

KINDS: dict[str, EngineKind] = {"native": native, "openai": textual, **REMOTE_KINDS}
KINDS[GROUP] = GroupKind(KINDS)


def chosen_entry(settings: "Settings") -> EngineEntry:
    """The engine that answers. All but a core of ours alone are of the kind `group`.

    Raises `EngineSetupError`.
    """
    entries = settings.engine_entries
    for entry in entries:
        if entry.kind not in KINDS:
            raise EngineSetupError(f"engines of the kind {entry.kind} are not built in")
    return SOLE if entries == (SOLE,) else EngineEntry(GROUP, GROUP)
