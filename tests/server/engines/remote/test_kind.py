"""A kind at an address, as the supervisor finds it and as a worker joins it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import demo_model
from server.config.engines import EngineEntry, parse_engines
from server.config.settings import load_settings
from server.engines.kinds import KINDS
from server.engines.managed import EngineSetupError, ManagedEngine
from server.engines.native.fingerprint import model_fingerprint
from server.engines.remote.checkpoint import Checkpoint
from server.engines.remote.dialects.dialect import Ask, RemoteFacts
from server.engines.remote.dialects.llamacpp import LlamaCpp
from server.engines.remote.options import RemoteOptions
from tests.helpers.patience import PATIENCE
from tests.server.engines.remote.conftest import read_all
from tests.server.engines.remote.stand_in import LlamaCppStandIn, answer_ids


@pytest.fixture
def stand_in(checkpoint: Checkpoint) -> LlamaCppStandIn:
    stand_in = LlamaCppStandIn()
    stand_in.tokenize = lambda text: checkpoint.tokenizer.encode(  # type: ignore[method-assign]
        text, add_special_tokens=False
    )
    return stand_in


class Managed:
    """What `manage` makes of an entry, and whether it has called."""

    def __init__(self, entry: str, **settings: Any) -> None:
        self.woken = threading.Event()
        given = load_settings({"model": "demo", **settings}, {})
        (parsed,) = parse_engines([entry])
        self.engine: ManagedEngine = KINDS[parsed.kind].manage(
            given, given.models[0], parsed, self.woken.set
        )

    async def look(self) -> ManagedEngine:
        """Start it, and wait until it is found, or found to be no good."""
        self.engine.start()
        assert await asyncio.to_thread(self.woken.wait, PATIENCE)
        self.engine.stop()
        return self.engine


async def test_looking_for_an_engine_outlives_what_nobody_has_thought_of(
    stand_in: LlamaCppStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, probe = [KeyError("x")], LlamaCpp.probe

    async def probed(dialect: LlamaCpp, ask: Ask) -> RemoteFacts:
        if faults:
            raise faults.pop()
        return await probe(dialect, ask)

    monkeypatch.setattr(LlamaCpp, "probe", probed)
    await stand_in.start()
    engine = await Managed(f"llamacpp={stand_in.url}").look()
    assert (engine.is_starting, engine.start_error, faults) == (False, None, [])
    await stand_in.die()


async def test_an_engine_that_is_there_is_found(stand_in: LlamaCppStandIn) -> None:
    await stand_in.start()
    managed = Managed(f"llamacpp={stand_in.url}")
    assert managed.engine.is_starting
    engine = await managed.look()
    assert (engine.is_starting, engine.start_error) == (False, None)
    assert engine.facts.context_length == 1024
    assert engine.facts.format == f"llamacpp at {stand_in.url}"
    await stand_in.die()


async def test_an_engine_that_is_not_there_yet_is_waited_for(stand_in: LlamaCppStandIn) -> None:
    await stand_in.start()
    await stand_in.die()
    managed = Managed(f"llamacpp={stand_in.url}")
    managed.engine.start()
    await stand_in.start()
    assert await asyncio.to_thread(managed.woken.wait, PATIENCE)
    assert not managed.engine.is_starting
    managed.engine.stop()
    await stand_in.die()


async def test_a_search_for_what_never_comes_ends_when_it_is_told_to(
    stand_in: LlamaCppStandIn,
) -> None:
    await stand_in.start()
    await stand_in.die()
    managed = Managed(f"llamacpp={stand_in.url}")
    managed.engine.start()
    await asyncio.to_thread(managed.engine.stop)
    assert managed.engine.is_starting


@pytest.mark.parametrize("fault", ["another kind", "another tokenizer", "no key"])
async def test_an_engine_that_cannot_be_served_ends_the_start_in_one_line(
    stand_in: LlamaCppStandIn, fault: str
) -> None:
    await stand_in.start()
    kind = "sglang" if fault == "another kind" else "llamacpp"
    if fault == "another tokenizer":
        stand_in.tokenize = lambda text: [1, 2, 3]  # type: ignore[method-assign]
    if fault == "no key":
        stand_in.routes = lambda: {"/props": lambda _: 401}  # type: ignore[method-assign]
    engine = await Managed(f"{kind}={stand_in.url}").look()
    problem = engine.start_error or ""
    assert problem.startswith(f"the engine at {stand_in.url}: ") and "\n" not in problem
    assert engine.is_refusal
    await stand_in.die()


def test_a_folder_without_a_tokenizer_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 10}')
    with pytest.raises(EngineSetupError, match=str(tmp_path)):
        Managed("llamacpp=http://127.0.0.1:1", model=str(tmp_path))


def test_what_the_operator_says_reaches_the_workers() -> None:
    entry = "sglang=https://gpu1:8000;key=/run/secrets/k;ca=/etc/ca.pem;model=m"
    managed = Managed(entry, max_model_len=77, answer_format="plain", max_num_queued_reqs=5)
    options = msgspec.convert(managed.engine.connect_options, RemoteOptions)
    assert (options.url, options.model, options.max_model_len) == ("https://gpu1:8000", "m", 77)
    assert (options.name, options.answer_format, options.max_num_queued_reqs) == (
        "parley-demo",
        "plain",
        5,
    )
    assert options.address.key_file == Path("/run/secrets/k")
    assert options.address.ca_file == Path("/etc/ca.pem")


async def test_a_worker_joins_it_with_the_tokenizer_of_the_folder(
    stand_in: LlamaCppStandIn,
) -> None:
    await stand_in.start()
    kind = KINDS["llamacpp"]
    managed = Managed(f"llamacpp={stand_in.url}", max_model_len=500)
    options = managed.engine.connect_options
    engine = kind.connect(options, on_core_state=lambda *state: None)
    await engine.wait_ready(PATIENCE)
    assert engine.model_config.max_model_len == 500
    ids = await engine.get_tokenizer().encode_async("Who lives here?")
    assert await read_all(engine, ids, 9) == answer_ids(ids, 9)
    engine.shutdown()
    await stand_in.die()


def test_the_model_is_known_by_the_folder() -> None:
    kind = KINDS["sglang"]
    options = Managed("sglang=http://127.0.0.1:1").engine.connect_options
    served = kind.served_model(options)
    assert (served.name, served.fingerprint) == ("parley-demo", model_fingerprint(demo_model()))
    assert served.sampling_defaults == {"temperature": 0.7, "top_p": 0.95}
    assert kind.free_bytes(load_settings({}, {})) is None
    assert EngineEntry("sglang", "x", "http://127.0.0.1:1").key_file is None
