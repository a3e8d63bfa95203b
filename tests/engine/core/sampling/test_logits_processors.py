"""The operator's own processors: beside parameters that do the same, at faults and dead cores."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import AsyncEngineArgs, AsyncLLM, EngineStartError, SamplingParams
from engine.config import EngineConfig
from engine.core.sampling.logits_processors import LogitsProcessors
from engine.errors import ValidationError
from engine.sampling_params import RequestOutputKind
from tests.engine.core.sampling.row_processors import Bias, Faulty, Follow, follower
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.engine.test_real_core import Supervised
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_tiny_model

MODULE = "tests.engine.core.sampling.row_processors"
NAMES = [f"{MODULE}:{name}" for name in ("Bias", "Follow", "Sharpen", "Faulty")]
BIASES = [(7, 9.0), (90, -30.0), (200, 11.0)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def make_engine(folder: Path, **settings: Any) -> SteppedEngine:
    return SteppedEngine(folder, logits_processors=NAMES, **settings)


def answer(prompt: list[int], num_tokens: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens.append(follower(prompt, tokens))
    return tokens


PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
    {"temperature": 1.0, "seed": 4, "top_p": 0.9, "logprobs": 3, "presence_penalty": 1.0},
]


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 5}, {"num_blocks": 9}])
def test_a_bias_of_the_operator_is_that_of_the_parameter(
    settings: dict[str, Any], runs_ahead: bool, folders: Folders
) -> None:
    """Each answer beside others, also with penalties, which come after both."""
    found = []
    for own in ({"logit_bias": dict(BIASES)}, {"extra_args": {"bias": BIASES}}):
        engine = make_engine(folders("llama"), runs_ahead=runs_ahead, **settings)
        for number, prompt in enumerate(make_prompts()):
            engine.add(f"plain {number}", prompt, **PARAMS[number % 3])
            engine.add(f"{number}", prompt, **PARAMS[number % 3], **own)
            engine.step()
        engine.run()
        assert (engine.scheduler.totals.preemptions > 0) == ("num_blocks" in settings)
        found.append((engine.tokens, engine.logprobs))
    assert found[0] == found[1]
    tokens, _ = found[0]
    assert any(tokens[f"{number}"] != tokens[f"plain {number}"] for number in range(6))


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 9}, {"max_num_batched_tokens": 5}])
def test_what_depends_on_all_tokens_gets_them_in_any_step(
    settings: dict[str, Any], folders: Folders
) -> None:
    engine = make_engine(folders("llama"), runs_ahead=True, **settings)
    for number, prompt in enumerate(make_prompts()):
        resumed = answer(prompt, number)
        params = {"extra_args": {"follow": 1}, "temperature": 1.0, "seed": number}
        engine.add(str(number), prompt, resume_token_ids=resumed, **params)
        engine.add(f"plain {number}", prompt)
        engine.step()
    engine.run()
    for number, prompt in enumerate(make_prompts()):
        assert engine.tokens[str(number)] == answer(prompt, 24)[number:]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
def test_one_that_keeps_the_best_token_works_after_the_temperature(
    temperature: float, folders: Folders
) -> None:
    engine = make_engine(folders("llama"))
    shared: dict[str, Any] = {"seed": 5, "top_p": 0.95, "repetition_penalty": 1.2}
    engine.add("sharp", [5, 6], **shared, temperature=temperature, extra_args={"sharpen": 2.0})
    engine.add("cool", [5, 6], **shared, temperature=temperature / 2)
    engine.add("plain", [5, 6], **shared, temperature=temperature)
    engine.run()
    assert engine.tokens["sharp"] == engine.tokens["cool"]
    assert (engine.tokens["sharp"] == engine.tokens["plain"]) == (temperature == 0)


def test_processed_logprobs_are_of_what_the_processors_gave(folders: Folders) -> None:
    engine = make_engine(folders("llama"), logprobs_mode="processed_logprobs")
    engine.add("r", [5, 6], extra_args={"follow": 1}, logprobs=0, max_tokens=3)
    engine.run()
    assert [entries[0][1] for entries in engine.logprobs["r"]] == [0.0] * 3


@pytest.mark.parametrize("fault", ["raise", "shape", "none", "torch", "nothing left", "nan"])
def test_a_fault_ends_its_request_alone(fault: str, folders: Folders) -> None:
    alone = make_engine(folders("llama"))
    alone.add("other", [9, 8, 7], temperature=1.0, seed=1, extra_args={"bias": BIASES})
    alone.run()
    engine = make_engine(folders("llama"))
    engine.add("faulty", [5, 6], extra_args={"fault": fault})
    engine.add("other", [9, 8, 7], temperature=1.0, seed=1, extra_args={"bias": BIASES})
    engine.run()
    assert engine.tokens["other"] == alone.tokens["other"]
    end = engine.ends["faulty"]
    assert len(engine.tokens["faulty"]) == 2 and end.error is not None
    assert end.error[0] == "logits_processor_failed"
    shown = "leave no token" if fault in ("nothing left", "nan") else "Faulty failed"
    assert shown in end.error[1]


def test_wrong_parameters_are_refused_before_the_prompt_is_read(folders: Folders) -> None:
    engine = make_engine(folders("llama"))
    engine.add("empty", [5], extra_args={"bias": []})
    engine.add("broken", [5], extra_args={"fault": "validate"})
    assert not engine.scheduler.sequences
    engine.take_outputs()
    assert engine.ends["empty"].error == ("invalid_request", "Bias: bias must not be empty")
    problem = "the logits processor Faulty failed: RuntimeError"
    assert engine.ends["broken"].error == ("logits_processor_failed", problem)


@pytest.mark.parametrize("num_steps", [1, 3, 6])
def test_an_abort_frees_everything(num_steps: int, folders: Folders) -> None:
    engine = make_engine(folders("llama"), max_num_batched_tokens=12)
    prompt = make_prompts()[2]
    engine.add("aborted", prompt, extra_args={"follow": 1})
    engine.add("other", prompt, extra_args={"follow": 1})
    for _ in range(num_steps):
        engine.step()
    engine.scheduler.abort("me", ["aborted"])
    engine.run()
    assert engine.ends["aborted"].finish_reason == "abort"
    assert engine.tokens["other"] == answer(prompt, 24)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere.at.all:X", "ModuleNotFoundError"),
        (f"{MODULE}:Missing", "AttributeError"),
        (f"{MODULE}:Foreign", "not derived from AdapterLogitsProcessor"),
        (f"{MODULE}:follower", "not derived from AdapterLogitsProcessor"),
        (f"{MODULE}:Unfinished", "abstract"),
    ],
)
def test_a_bad_name_is_refused_in_one_line(name: str, problem: str) -> None:
    config = EngineConfig(
        model="", address="", served_model_name="", logits_processors=[NAMES[0], name]
    )
    with pytest.raises(ValueError, match=problem) as caught:
        LogitsProcessors.load(config, torch.device("cpu"))
    assert name in str(caught.value) and "\n" not in str(caught.value)


# ---- real cores


def test_a_core_with_a_bad_name_does_not_start(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path)
    with pytest.raises(EngineStartError, match="the logits processor nowhere:X cannot be used"):
        AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), logits_processors=["nowhere:X"]))


@pytest.mark.slow
async def test_answers_go_on_in_the_next_core(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path)
    classes: list[type] = [Bias, Follow, Faulty]
    arguments = AsyncEngineArgs(str(folder), threads=1, pace=200, logits_processors=classes)
    supervised = Supervised(arguments, stall_seconds=PATIENCE)
    await supervised.wait_ready()
    engine, doomed = supervised.engine, supervised.core.process
    params = SamplingParams(
        max_tokens=400,
        n=2,
        seed=1,
        extra_args={"follow": True},
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
    tokens: dict[int, list[int]] = {0: [], 1: []}
    num_resubmits = 0

    async def ask() -> None:
        nonlocal num_resubmits
        async for output in engine.generate([5, 6], params, "r"):
            for completion in output.outputs:
                tokens[completion.index] += completion.token_ids
                if len(tokens[completion.index]) >= 10:
                    doomed.kill()
            num_resubmits = output.metrics.num_resubmits if output.metrics else 0

    asking = asyncio.create_task(ask())
    await asyncio.to_thread(doomed.wait)
    await supervised.replace()
    await asking
    assert tokens == {0: answer([5, 6], 400), 1: answer([5, 6], 400)} and num_resubmits > 0

    unsendable: list[Any] = [{"x": object()}, {1: 2}]
    for extra_args in unsendable:
        with pytest.raises(ValidationError, match="extra_args cannot be sent"):
            async for _ in engine.generate([5], SamplingParams(extra_args=extra_args), "r"):
                pass
    ends = [
        output
        async for output in engine.generate(
            [5], SamplingParams(extra_args={"bias": []}, max_tokens=3), "r"
        )
    ]
    assert ends[-1].error is not None and ends[-1].error.code == "invalid_request"
    supervised.close()
