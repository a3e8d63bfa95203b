"""Beam search beside every possible answer and transformers, under aborts and dead cores."""

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import AsyncEngineArgs, AsyncLLM, BeamSearchParams, RequestOutput, SamplingParams
from engine.beam_search import Beam, BeamSearch
from engine.client.control import PauseMode
from engine.errors import PromptTooLongError, RetryableRequestError, ValidationError
from engine.ipc import AddRequest
from engine.logprobs import Logprob
from tests.engine.helpers.connected_engine import PROMPT, receive, settle
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.engine.test_real_core import Supervised
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.slow

ENDS = list(range(5, 380, 6))  # so many that beams end at any length
PENALTIES = [1.0, 0.0, -1.0, 2.5]


def build_model(folder: Path) -> Path:
    build_tiny_model(folder, initializer_range=0.1)
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        fields = json.loads(file.read_text()) | {"eos_token_id": ENDS}
        file.write_text(json.dumps(fields))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("beams"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Callable[[list[int]], torch.Tensor]:
    """The logprobs of what follows a text, [vocab] float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")

    def following(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        return torch.as_tensor(logits).float().log_softmax(-1)

    return following


def arguments_of(folder: Path) -> AsyncEngineArgs:
    return AsyncEngineArgs(str(folder), threads=1, num_gpu_blocks_override=80)


@pytest.fixture(scope="module")
def owned(folder: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM.from_engine_args(arguments_of(folder))
    yield engine
    engine.shutdown()


@pytest.fixture
async def engine(owned: AsyncLLM) -> AsyncIterator[AsyncLLM]:
    """The module's engine; after each test nothing may be left in its core."""
    yield owned
    await owned.wait_for_requests_to_drain()
    metrics = await owned.metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]
    assert owned.get_num_unfinished_requests() == 0


@pytest.fixture
async def crowded(folder: Path) -> AsyncIterator[AsyncLLM]:
    """An engine in which one runs and one may wait."""
    args = arguments_of(folder)
    args.max_num_seqs = args.max_num_queued_reqs = 1
    engine = AsyncLLM.from_engine_args(args)
    yield engine
    engine.shutdown()


@pytest.fixture
async def supervised(folder: Path) -> AsyncIterator[Supervised]:
    supervised = Supervised(arguments_of(folder), stall_seconds=PATIENCE)
    await supervised.wait_ready()
    yield supervised
    supervised.close()


async def search(engine: AsyncLLM, prompt: Any, name: Any = "s", **params: Any) -> RequestOutput:
    async with asyncio.timeout(PATIENCE):
        outputs = engine.beam_search(prompt, name, BeamSearchParams(**params))
        (output,) = [output async for output in outputs]
    assert output.finished and output.request_id == name
    return output


def found(output: RequestOutput) -> list[tuple[list[int], int | str | None]]:
    return [(completion.token_ids, completion.stop_reason) for completion in output.outputs]


# ---- the search itself


def every_answer(
    chain: list[list[float]], ends: set[int], max_tokens: int
) -> list[tuple[float, list[int]]]:
    """Logprob and tokens of each answer of so many tokens, or that ends before."""
    answers = []
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(len(chain)), repeat=length):
            is_over = tokens[-1] in ends or length == max_tokens
            if is_over and not ends & set(tokens[:-1]):
                pairs = itertools.pairwise((0, *tokens))
                answers.append((sum(chain[a][b] for a, b in pairs), list(tokens)))
    return answers


def run_search(chain: list[list[float]], params: BeamSearchParams, ends: set[int]) -> list[Beam]:
    """Over a chain: logprobs of the next token by the last one, which is 0 at the start."""
    searching = BeamSearch(params, ends, params.max_tokens)
    while not searching.is_done:
        rows = [chain[beam.token_ids[-1] if beam.token_ids else 0] for beam in searching.beams]
        best = [
            sorted(range(len(row)), key=lambda t: -row[t])[: 2 * params.beam_width] for row in rows
        ]
        searching.expand(
            [{t: Logprob(row[t]) for t in ids} for ids, row in zip(best, rows, strict=True)]
        )
    return searching.best()


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(5))
def test_a_search_as_wide_as_all_answers_finds_the_best_of_all(seed: int, penalty: float) -> None:
    weights = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)) * 2
    chain, ends = weights.log_softmax(-1).tolist(), {3}
    params = BeamSearchParams(4**5, 5, length_penalty=penalty, include_stop_str_in_output=True)
    expected = sorted(
        (
            (logprob / len(tokens) ** penalty, tokens)
            for logprob, tokens in every_answer(chain, ends, 5)
        ),
        reverse=True,
    )
    beams = run_search(chain, params, ends)
    assert len(beams) == len(expected)
    for beam, (score, _) in zip(beams, expected, strict=True):
        assert beam.score(penalty) == pytest.approx(score)
    assert sorted(beam.token_ids for beam in beams) == sorted(tokens for _, tokens in expected)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_search_that_ends_early_finds_what_it_would_have_found(penalty: float) -> None:
    """Beside one without an early end, for many chains."""
    for seed in range(60):
        weights = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))
        chain, ends = weights.log_softmax(-1).tolist(), {4, 5}
        params = BeamSearchParams(3, 9, length_penalty=penalty)
        early = run_search(chain, params, ends)
        full = BeamSearch(params, ends, 9)
        for _ in range(9):
            rows = [chain[beam.token_ids[-1] if beam.token_ids else 0] for beam in full.beams]
            full.expand([dict(enumerate(map(Logprob, row))) for row in rows])
        assert [(b.token_ids, b.stop_token) for b in early] == [
            (b.token_ids, b.stop_token) for b in full.best()
        ]


def test_scores_of_extreme_lengths_and_penalties_are_numbers() -> None:
    beam = Beam([1] * 9, [{}] * 9, -3.0)
    assert beam.score(1e6) == 0 and beam.score(-1e6) == -math.inf
    assert Beam().score(1.0) == Beam().score(-1.0) == 0


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("beam_width", 0),
        ("beam_width", 1 << 20),
        ("beam_width", 2.0),
        ("max_tokens", 0),
        ("max_tokens", None),
        ("ignore_eos", 1),
        ("temperature", -1),
        ("temperature", math.nan),
        ("length_penalty", math.inf),
        ("length_penalty", "long"),
        ("include_stop_str_in_output", None),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", list(range(129))),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(parameter: str, value: Any) -> None:
    given: dict[str, Any] = {"beam_width": 2, "max_tokens": 3} | {parameter: value}
    with pytest.raises(ValidationError) as caught:
        BeamSearchParams(**given)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("name", ["structured_outputs", "watermarking"])
def test_what_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        BeamSearchParams(2, 3, **{name: True})  # type: ignore[arg-type]  # any of them


# ---- a real core


def reference(
    following: Callable[[list[int]], torch.Tensor],
    prompt: list[int],
    width: int,
    steps: int,
    penalty: float,
    ends: list[int],
) -> list[tuple[float, list[int], int | None]]:
    """A plain search: score, tokens and the token that ended it."""
    open_, ended = [(0.0, list[int]())], []
    for step in range(1, steps + 1):
        longer = []
        for logprob, tokens in open_:
            row = following(prompt + tokens)
            for token in row.topk(2 * width).indices.tolist():
                total = logprob + float(row[token])
                if token in ends:
                    ended.append((total / step**penalty, tokens, token))
                else:
                    longer.append((total, [*tokens, token]))
        open_ = sorted(longer, key=lambda each: -each[0])[:width]
    found = ended + [(logprob / steps**penalty, tokens, None) for logprob, tokens in open_]
    return sorted(found, key=lambda each: -each[0])[:width]


@pytest.mark.parametrize(
    ("width", "steps", "penalty", "length"),
    [(1, 12, 1.0, 5), (3, 10, 1.0, 20), (4, 12, 2.0, 37), (2, 9, -1.0, 3), (10, 5, 0.0, 16)],
)
async def test_the_answers_are_those_of_a_search_over_transformers(
    width: int, steps: int, penalty: float, length: int, engine: AsyncLLM, oracle: Any
) -> None:
    prompt = [11 + 3 * number % 350 for number in range(length)]
    expected = reference(oracle, prompt, width, steps, penalty, ENDS)
    output = await search(
        engine, prompt, beam_width=width, max_tokens=steps, length_penalty=penalty
    )
    assert found(output) == [(tokens, end) for _, tokens, end in expected]
    assert width == 1 or any(end is not None for _, _, end in expected)
    for completion, (score, tokens, end) in zip(output.outputs, expected, strict=True):
        num_tokens = len(tokens) + (end is not None)
        assert completion.cumulative_logprob is not None and completion.logprobs is not None
        assert completion.cumulative_logprob == pytest.approx(score * num_tokens**penalty, abs=1e-4)
        assert len(completion.logprobs) == num_tokens
        assert completion.finish_reason == ("length" if end is None else "stop")
        assert completion.text == engine.tokenizer.decode(tokens, skip_special_tokens=True)
    assert [completion.index for completion in output.outputs] == list(range(width))


async def test_without_ends_the_answers_are_those_of_transformers_own_search(
    engine: AsyncLLM, folder: Path
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    prompt = [7, 90, 200, 33]
    expected = model.generate(
        torch.tensor([prompt]),
        num_beams=4,
        num_return_sequences=4,
        do_sample=False,
        max_new_tokens=8,
        min_new_tokens=8,
        eos_token_id=None,
        pad_token_id=0,
    )
    output = await search(engine, prompt, beam_width=4, max_tokens=8, ignore_eos=True)
    assert [completion.token_ids for completion in output.outputs] == expected[:, 4:].tolist()


async def test_other_requests_and_chunks_change_no_answer(engine: AsyncLLM, folder: Path) -> None:
    prompt = list(range(20, 60))
    alone = await search(engine, prompt, beam_width=4, max_tokens=8)
    others = [
        search(engine, prompt[n:], f"other {n}", beam_width=3, max_tokens=8) for n in range(5)
    ]
    together, *_ = await asyncio.gather(search(engine, prompt, beam_width=4, max_tokens=8), *others)
    assert found(together) == found(alone)
    again = await search(engine, prompt, beam_width=4, max_tokens=8)
    assert again.num_cached_tokens == 32 and found(again) == found(alone)
    texts = [completion.cumulative_logprob for completion in again.outputs]
    assert texts == [completion.cumulative_logprob for completion in alone.outputs]


async def test_a_search_may_be_wider_than_the_queue(crowded: AsyncLLM, engine: AsyncLLM) -> None:
    params = {"beam_width": 6, "max_tokens": 4}
    alone = found(await search(engine, [7, 8, 9], **params))
    assert found(await search(crowded, [7, 8, 9], **params)) == alone


async def test_only_allowed_tokens_are_followed_and_ends_may_be_shown(
    engine: AsyncLLM,
) -> None:
    params: dict[str, Any] = {"allowed_token_ids": [20, 21, 11], "max_tokens": 4}
    output = await search(engine, [7, 8], beam_width=5, include_stop_str_in_output=True, **params)
    assert {token for ids, _ in found(output) for token in ids} <= {20, 21, 11}
    for completion in output.outputs:
        assert (completion.stop_reason == 11) == (completion.token_ids[-1] == 11)
    hot = [
        await search(engine, [7, 8], beam_width=5, temperature=1.5, max_tokens=5) for _ in range(2)
    ]
    assert found(hot[0]) == found(hot[1])


async def test_the_context_ends_a_search(engine: AsyncLLM) -> None:
    assert engine.ready is not None
    prompt = [50] * (engine.ready.max_model_len - 3)
    output = await search(engine, prompt, beam_width=2, max_tokens=50, ignore_eos=True)
    assert [len(completion.token_ids) for completion in output.outputs] == [3, 3]
    with pytest.raises(ValidationError, match="the prompt has"):
        await search(engine, [50] * engine.ready.max_model_len, beam_width=2, max_tokens=5)
    with pytest.raises(PromptTooLongError):
        await search(engine, "a b " * 9000, beam_width=2, max_tokens=5)


async def during(
    engine: AsyncLLM, number: int, action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Do something before the request of this number of a search is sent."""
    numbers, add_request = itertools.count(1), engine.add_request

    async def added(*args: Any, **options: Any) -> Any:
        if next(numbers) == number:
            await action()
        return await add_request(*args, **options)

    monkeypatch.setattr(engine, "add_request", added)


@pytest.mark.parametrize("number", [1, 2, 4, 11])
async def test_an_abort_ends_a_search_with_its_best_beams_and_frees_everything(
    number: int, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = BeamSearchParams(3, 30, ignore_eos=True)
    whole = await search(
        engine, [9, 9], beam_width=3, max_tokens=(number + 1) // 3 or 1, ignore_eos=True
    )

    async def abort() -> None:
        await engine.abort("s")
        await engine.abort("s")
        async for _ in engine.generate([4], SamplingParams(max_tokens=1), "s"):
            pass  # the id is free at once

    await during(engine, number, abort, monkeypatch)
    (output,) = [output async for output in engine.beam_search([9, 9], "s", params)]
    assert output.finished and output.error is None
    assert {completion.finish_reason for completion in output.outputs} == {"abort"}
    if number > 1:
        assert found(output) == found(whole)
    metrics = await engine.metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]
    assert engine.get_num_unfinished_requests() == 0


async def test_a_reader_that_leaves_ends_its_search(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_begun = asyncio.Event()

    async def begin() -> None:
        is_begun.set()

    await during(engine, 5, begin, monkeypatch)
    asking = asyncio.create_task(
        search(engine, [9, 9], beam_width=3, max_tokens=200, ignore_eos=True)
    )
    await is_begun.wait()
    with pytest.raises(ValidationError, match="is open already"):
        await search(engine, [1], beam_width=1, max_tokens=1)
    with pytest.raises(ValidationError, match="is open already"):
        await engine.add_request("s", [1], SamplingParams())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await engine.wait_for_requests_to_drain()
    assert len((await search(engine, [1], beam_width=1, max_tokens=1)).outputs) == 1


@pytest.mark.parametrize(
    ("number", "is_noticed"), [(9, False), pytest.param(2, True, marks=pytest.mark.slow)]
)
async def test_a_search_goes_on_in_the_next_core(
    number: int, is_noticed: bool, supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = supervised.engine
    undisturbed = await search(engine, [7, 70], beam_width=3, max_tokens=7)
    is_dead = asyncio.Event()

    async def kill() -> None:
        supervised.core.process.kill()
        if is_noticed:
            await settle(lambda: not engine.is_ready)
        is_dead.set()

    await during(engine, number, kill, monkeypatch)
    asking = asyncio.create_task(search(engine, [7, 70], beam_width=3, max_tokens=7))
    await is_dead.wait()
    await supervised.replace()
    output = await asking
    assert found(output) == found(undisturbed) and output.error is None


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_a_search_that_is_kept_goes_on_after_a_sleep(
    level: int, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = await search(engine, [7, 70], beam_width=3, max_tokens=7)
    is_asleep = asyncio.Event()

    async def sleep() -> None:
        await engine.sleep(level, mode="keep")
        is_asleep.set()

    await during(engine, 6, sleep, monkeypatch)
    asking = asyncio.create_task(search(engine, [7, 70], beam_width=3, max_tokens=7))
    await is_asleep.wait()
    await engine.wake_up()
    output = await asking
    assert found(output) == found(undisturbed) and output.error is None


@pytest.mark.parametrize("mode", ["abort", "wait"])
@pytest.mark.parametrize("number", [2, 5, 6])
async def test_sleep_ends_a_search_with_its_best_beams(
    mode: PauseMode, number: int, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is between two steps, or has sent a part of the next one's requests."""
    width: dict[str, Any] = {"beam_width": 3, "ignore_eos": True}
    whole = await search(engine, [9, 9], max_tokens=1 if number == 2 else 2, **width)

    async def sleep() -> None:
        await engine.sleep(1, mode=mode)

    await during(engine, number, sleep, monkeypatch)
    output = await search(engine, [9, 9], max_tokens=30, **width)
    assert {completion.finish_reason for completion in output.outputs} == {"abort"}
    assert found(output) == found(whole) and output.error is None
    with pytest.raises(RetryableRequestError, match="asleep"):
        await search(engine, [9, 9], max_tokens=30, **width)
    await engine.wake_up()


@pytest.mark.slow
async def test_an_abort_while_there_is_no_core_ends_a_search_at_once(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, is_dead = supervised.engine, asyncio.Event()

    async def kill() -> None:
        supervised.core.process.kill()
        await settle(lambda: not engine.is_ready)
        is_dead.set()

    await during(engine, 2, kill, monkeypatch)
    asking = asyncio.create_task(search(engine, [7], beam_width=3, max_tokens=7))
    await is_dead.wait()
    with pytest.raises(RetryableRequestError):
        await search(engine, [7], "other", beam_width=3, max_tokens=7)
    await engine.abort("s")
    output = await asking
    assert {completion.finish_reason for completion in output.outputs} <= {"abort", "stop"}
    await supervised.replace()


async def test_a_search_is_refused_by_name(engine: AsyncLLM) -> None:
    for params, problem in (
        ({"beam_width": 11, "max_tokens": 1}, "beam_width must be at most 10"),
        ({"beam_width": 1, "max_tokens": 1, "allowed_token_ids": [1 << 30]}, "allowed_token_ids"),
    ):
        with pytest.raises(ValidationError, match=problem):
            await search(engine, [1], **params)
    with pytest.raises(ValidationError, match="must be BeamSearchParams"):
        async for _ in engine.beam_search([1], "s", SamplingParams()):  # type: ignore[arg-type]  # wrong
            pass
    with pytest.raises(ValidationError, match="the prompt is empty"):
        await search(engine, [], beam_width=1, max_tokens=1)
    assert engine.get_num_unfinished_requests() == 0


async def test_an_error_of_one_beam_ends_the_search(model: Path, address: str) -> None:
    with ScriptedCore(address) as core:
        engine = AsyncLLM.connect(core.address, model=str(model))
        await engine.wait_ready(PATIENCE)
        asking = asyncio.create_task(search(engine, PROMPT, beam_width=2, max_tokens=9))
        first = await receive(core, AddRequest)
        logprobs = [[[70, -0.5, 1], [71, -1.5, 2], [0, -2.5, 3]]]
        core.emit(first.request_id, 70, finish="length", logprobs=logprobs)
        beams = [await receive(core, AddRequest) for _ in range(2)]
        assert [beam.prompt_token_ids for beam in beams] == [[*PROMPT, 70], [*PROMPT, 71]]
        core.emit(beams[0].request_id, finish="error", error=("request_timeout", "too late"))
        core.emit(beams[1].request_id, 70, finish="length", logprobs=logprobs)
        output = await asking
        assert output.error is not None and output.error.code == "request_timeout"
        assert found(output) == [([70], None), ([71], None)]
        assert [each.finish_reason for each in output.outputs] == ["error", "error"]
        engine.shutdown()
