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
KINDS[GROUP] = GROUPS = GroupKind(KINDS)


def chosen_entry(settings: "Settings") -> EngineEntry:
    """The engine that answers; several, or a core of ours to which others may come, are a group.

    Raises `EngineSetupError`.
    """
    entries = settings.engine_entries
    for entry in entries:
        if entry.kind not in KINDS:
            raise EngineSetupError(f"engines of the kind {entry.kind} are not built in")
    first = entries[0]
    is_remote = first.url is not None and len(settings.model) == 1
    is_alone = len(entries) == 1 and (first == SOLE or is_remote)
    return first if is_alone else EngineEntry(GROUP, GROUP)


def chosen_kind(settings: "Settings") -> EngineKind:
    """The kind of that engine; a group has names and memory of models as its first engine has."""
    entry = chosen_entry(settings)
    return (
        GROUPS.led_by(settings.engine_entries[0].kind) if entry.kind == GROUP else KINDS[entry.kind]
    )
