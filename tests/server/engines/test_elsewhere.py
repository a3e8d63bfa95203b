"""An engine elsewhere, as the supervisor looks for it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.engines import elsewhere
from server.engines.elsewhere import EngineElsewhere
from server.engines.managed import EngineSetupError
from tests.helpers.patience import PATIENCE


def refused() -> int:
    raise EngineSetupError("it has another model")


@pytest.mark.parametrize("late", [lambda: 7, refused], ids=["found", "refused"])
def test_what_a_slow_engine_says_after_it_was_let_go_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: Callable[[], int]
) -> None:
    monkeypatch.setattr(elsewhere, "RELEASE_SECONDS", 0.01)
    may_say, woken = threading.Event(), threading.Semaphore(0)
    looks: Iterator[Callable[[], int]] = iter([late, lambda: 9])

    def find() -> int:
        say = next(looks)
        if say is late:
            may_say.wait(PATIENCE)
        return say()

    engine = EngineElsewhere(
        "m", tmp_path, "vllm at http://gpu1", {}, find=find, wake=woken.release
    )
    engine.start()
    engine.stop()  # at once, however long it takes
    engine.start()
    assert woken.acquire(timeout=PATIENCE)
    may_say.set()
    assert woken.acquire(timeout=PATIENCE)
    assert (engine.facts.context_length, engine.start_error, engine.is_starting) == (9, None, False)
