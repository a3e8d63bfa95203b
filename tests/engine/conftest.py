"""What tests of the engine share; and after each, all that it built must be able to end cleanly."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from engine.client.async_llm import AsyncLLM
from engine.client.launcher import PrivateDirectory
from engine.client.requests import core_client as client
from engine.client.text.tokenizer import Tokenizer
from engine.core.scheduling.scheduler import Scheduler
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.engine.helpers.small_tokenizers import BUILDERS, DECODERS, build_chatml
from tests.helpers.patience import PATIENCE

# How long an example takes says how busy the machine is; a failing one is printed to be repeated.
settings.register_profile("engine", deadline=None, print_blob=True)
settings.load_profile("engine")


@pytest.fixture(autouse=True)
def cores_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that confirms an abort late has been halted with the machine, and is not silent."""
    monkeypatch.setattr(client, "ABORT_CONFIRM_SECONDS", PATIENCE)


@pytest.fixture(autouse=True)
def nothing_is_left_of_any_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """R8: when all has ended, free and cached blocks are all there are, without a reference."""
    built: list[Scheduler] = []
    build = Scheduler.__init__

    def build_and_remember(scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
        build(scheduler, *args, **kwargs)
        built.append(scheduler)

    monkeypatch.setattr(Scheduler, "__init__", build_and_remember)
    yield
    for scheduler in built:
        scheduler.check_integrity()
        for sequence in list(scheduler.sequences.values()):
            scheduler.finish(sequence, "abort")
        while scheduler.blocks.is_step_in_flight:  # a test that ends within a step
            scheduler.give_up()
        scheduler.check_idle()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer and a chat template, and no weights."""
    return build_chatml(tmp_path_factory.mktemp("chatml"))


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One of each family and of each kind of decoder."""
    root = tmp_path_factory.mktemp("tokenizers")
    builders = {**BUILDERS, **DECODERS}
    return {name: Tokenizer(build(root / name)) for name, build in builders.items()}


@pytest.fixture
def address() -> Iterator[str]:
    """A socket for a core in a directory of its own."""
    directory = PrivateDirectory()
    yield directory.address
    directory.remove()


@pytest.fixture
def core(address: str) -> Iterator[ScriptedCore]:
    with ScriptedCore(address) as core:
        yield core


@pytest.fixture
async def engine(core: ScriptedCore, model: Path) -> AsyncIterator[AsyncLLM]:
    """The client half on a core that says what the test wants; a dead core is the end."""
    engine = AsyncLLM.connect(core.address, model=str(model), resubmit=False)
    await engine.wait_ready(PATIENCE)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads of so small a model only wait for each other, very long on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
