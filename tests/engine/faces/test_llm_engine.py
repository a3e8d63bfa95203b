"""`LLMEngine` in front of a real core: steps, aborts, and a core that is killed."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import (
    AsyncLLM,
    EngineArgs,
    EngineDeadError,
    LLMEngine,
    PoolingParams,
    PoolingRequestOutput,
    QueueOverflowError,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    ValidationError,
)
from engine.ipc import AddRequest, SequenceOutput
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_oracle_model, oracle_answer

FIRST = 41


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> EngineArgs:
    folder = build_oracle_model(tmp_path_factory.mktemp("oracle"), vocab=2000, max_positions=2048)
    return EngineArgs(str(folder), num_gpu_blocks_override=300, threads=1)


@pytest.fixture(scope="module")
def owned(arguments: EngineArgs) -> Iterator[LLMEngine]:
    engine = LLMEngine.from_engine_args(arguments)
    yield engine
    engine.shutdown()


@pytest.fixture
def engine(owned: LLMEngine) -> Iterator[LLMEngine]:
    """The module's engine; after each test nothing may be left in it or in its core."""
    yield owned
    assert not owned.has_unfinished_requests()
    metrics = owned.get_metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


def run(engine: LLMEngine) -> list[RequestOutput | PoolingRequestOutput]:
    """All outputs of all steps, until nothing is open."""
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_steps_give_every_output_until_the_last(engine: LLMEngine) -> None:
    for n in range(4):
        assert engine.add_request(f"r{n}", [FIRST + n], greedy(10 + n)) == f"r{n}"
    assert engine.get_num_unfinished_requests() == 4
    texts: dict[str, str] = {}
    for output in run(engine):
        assert isinstance(output, RequestOutput)
        text = output.outputs[0].text
        assert text.startswith(texts.get(output.request_id, ""))
        texts[output.request_id] = text
    assert texts == {f"r{n}": oracle_answer(FIRST + n, 10 + n) for n in range(4)}
    assert engine.step() == []


def test_a_step_has_at_most_one_output_of_each_request(engine: LLMEngine) -> None:
    for n in range(3):
        engine.add_request(f"r{n}", [FIRST], greedy(40, output_kind=RequestOutputKind.DELTA))
    texts = dict.fromkeys(("r0", "r1", "r2"), "")
    while engine.has_unfinished_requests():
        outputs = engine.step()
        assert len({output.request_id for output in outputs}) == len(outputs)
        for output in outputs:
            assert isinstance(output, RequestOutput)
            texts[output.request_id] += output.outputs[0].text
    assert set(texts.values()) == {oracle_answer(FIRST, 40)}


def test_requests_come_in_between_steps(engine: LLMEngine) -> None:
    """The loop of vLLM's own example."""
    waiting = [(f"r{n}", greedy(5 + n)) for n in range(6)]
    ended = []
    while waiting or engine.has_unfinished_requests():
        if waiting:
            request_id, params = waiting.pop(0)
            engine.add_request(request_id, [FIRST], params)
        ended += [output.request_id for output in engine.step() if output.finished]
    assert sorted(ended) == [f"r{n}" for n in range(6)]


def test_an_embedding_is_an_output_of_a_step(engine: LLMEngine) -> None:
    engine.add_request("e", [FIRST], PoolingParams())
    engine.add_request("r", [FIRST], greedy(3))
    outputs = {output.request_id: output for output in run(engine)}
    embedding = outputs["e"]
    assert isinstance(embedding, PoolingRequestOutput) and len(embedding.outputs.data) == 256


def test_an_aborted_request_has_no_further_output(engine: LLMEngine) -> None:
    for name in ("a", "b", "c"):
        engine.add_request(name, [FIRST], greedy(1900 if name != "b" else 20))
    before: list[RequestOutput | PoolingRequestOutput] = []
    while not before:
        before += engine.step()
    engine.abort_request("a")
    engine.abort_request(["c", "never was"])
    after = run(engine)  # nothing of "b", where its end came with the first step that had outputs
    assert {output.request_id for output in after} <= {"b"}
    assert [output.request_id for output in before + after if output.finished] == ["b"]
    engine.add_request("a", [FIRST], greedy(2))  # the id is free
    assert run(engine)[-1].finished


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], greedy(1), ValidationError),
        ([FIRST], "hot", NotImplementedError),
        ([5000], greedy(1), ValidationError),
        (3.5, greedy(1), NotImplementedError),
    ],
)
def test_bad_input_is_refused_at_once(
    prompt: Any, params: Any, error: type[Exception], engine: LLMEngine
) -> None:
    with pytest.raises(error):
        engine.add_request("r", prompt, params)
    assert not engine.has_unfinished_requests()


def test_an_id_in_use_is_refused(engine: LLMEngine) -> None:
    engine.add_request("r", [FIRST], greedy(1900))  # which does not end before the next line
    with pytest.raises(ValidationError, match="is open already"):
        engine.add_request("r", [FIRST], greedy(30))
    engine.abort_request("r")
    run(engine)


def test_a_step_returns_though_nothing_comes(address: str, model: Path) -> None:
    with ScriptedCore(address) as core:
        engine = LLMEngine(AsyncLLM.connect(core.address, model=str(model)))
        engine._thread.run(engine._engine.wait_ready(PATIENCE))
        engine.add_request("r", [1, 2, 3], greedy(5))
        assert engine.step() == [] and engine.has_unfinished_requests()
        engine.shutdown()


def test_the_error_of_one_request_costs_no_output_of_another(address: str, model: Path) -> None:
    with ScriptedCore(address) as core:
        engine = LLMEngine(AsyncLLM.connect(core.address, model=str(model)))
        engine._thread.run(engine._engine.wait_ready(PATIENCE))
        for name in ("refused", "well"):
            engine.add_request(name, [1, 2, 3], greedy(1))
        refused, well = (core.receive(AddRequest).request_id for _ in range(2))
        no = ("queue_full", "not now")
        core.emit_all(
            [
                SequenceOutput(well, [5], finish_reason="length"),
                SequenceOutput(refused, finish_reason="error", error=no),
            ]
        )
        with pytest.raises(QueueOverflowError, match="not now"):
            while True:
                assert engine.step() == []
        (output,) = engine.step()
        assert output.request_id == "well" and not engine.has_unfinished_requests()
        engine.shutdown()


def test_a_killed_core_ends_every_request(arguments: EngineArgs) -> None:
    engine = LLMEngine.from_engine_args(arguments)
    core = engine._engine._parts.core
    assert core is not None
    for name in ("a", "b"):
        engine.add_request(name, [FIRST], greedy(1900))
    while not engine.step():
        pass
    core.process.kill()
    errors = 0
    while engine.has_unfinished_requests():
        try:
            engine.step()
        except EngineDeadError:
            errors += 1
    assert errors == 2
    with pytest.raises(EngineDeadError):
        engine.add_request("c", [FIRST], greedy(1))
    engine.shutdown()


def test_an_engine_that_is_dropped_ends_its_core(arguments: EngineArgs) -> None:
    engine = LLMEngine.from_engine_args(arguments)
    core, thread = engine._engine._parts.core, engine._thread
    assert core is not None
    engine.add_request("a", [FIRST], greedy(1900))
    dropped = weakref.ref(engine)
    del engine
    gc.collect()
    assert dropped() is None
    assert core.poll() is not None and not thread._thread.is_alive()
