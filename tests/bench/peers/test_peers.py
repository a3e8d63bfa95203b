"""What is said of the servers that are compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import bench.peers.__main__ as peers
from bench.peers.engines.parley import Parley
from bench.peers.engines.peer import Running, Site
from bench.peers.machine.environments import Environments, Unavailable
from bench.peers.models import Checkpoint


class Absent(Parley):
    """Never up."""

    @contextmanager
    def running(self) -> Iterator[Running]:
        raise Unavailable("it is absent")
        yield


class AbsentWithLog(Absent):
    keeps_log: ClassVar[bool] = True


@pytest.mark.parametrize(("peer", "ending"), [(Absent, "…"), (AbsentWithLog, "-bf16.log)")])
def test_a_log_is_named_only_of_a_server_that_keeps_it(
    peer: type[Parley], ending: str, checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(peers, "say", said.append)
    site = Site(Environments(Path("cache"), 1), Checkpoint.open("s", checkpoint_folder), 1)
    run: Any = object.__new__(peers.Run)
    with pytest.raises(Unavailable), run._running(peer(site, "bf16")):
        pass
    assert said[0].startswith("parley:bf16: starting …") and said[0].endswith(ending)
