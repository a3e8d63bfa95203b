"""What `parley core` runs: a core of this machine that servers on others join."""

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from engine.config import FarDoor
from engine.far.calls import PERMITS
from engine.far.keys import KeysError, read_keys
from server.config.engines import far_address
from server.config.settings import Settings
from server.engines.managed import EngineSetupError, ManagedEngine
from server.engines.native import preparation


def manage(
    settings: Settings,
    listen: str,
    keys: Path | None,
    permits: Sequence[str],
    wake: Callable[[], None],
) -> ManagedEngine:
    """Get the model ready for a core that listens at an address. Raises `EngineSetupError`."""
    if len(settings.models) != 1:
        raise EngineSetupError("a core has one model: run one for each")
    door = _door(listen, keys, permits)
    return preparation.manage(settings, settings.models[0], wake, far=door)


def _door(listen: str, keys: Path | None, permits: Sequence[str]) -> FarDoor:
    if keys is None:
        raise EngineSetupError(
            f"{listen} needs --keys FOLDER, which `parley core keys` makes: nothing is served"
            " unencrypted, or to whom it does not trust"
        )
    try:
        read_keys(keys)
        host = urlsplit(far_address(listen)).hostname or ""
        ipaddress.ip_address(host)
    except KeysError as error:
        raise EngineSetupError(str(error)) from None
    except ValueError:
        problem = f"{listen} is no address to listen at; one looks like tcp://0.0.0.0:7700"
        raise EngineSetupError(problem) from None
    for permit in permits:
        if permit not in PERMITS:
            raise EngineSetupError(f"there is no permit {permit}, but {', '.join(PERMITS)}")
    return FarDoor(address=listen, keys=str(keys.absolute()), permits=list(permits))
