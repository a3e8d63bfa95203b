"""`AsyncLLM.encode`: against a core with a script, and against real ones that are killed."""

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from engine import AsyncEngineArgs, AsyncLLM, PoolingParams, PoolingRequestOutput, SamplingParams
from engine.client.control import PauseMode
from engine.errors import PromptTooLongError, ValidationError
from engine.ipc import Abort, AddRequest, SequenceOutput, decode_client_message, encode
from engine.outputs import RequestProgress
from tests.engine.helpers.connected_engine import PROMPT, receive, settle
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.engine.test_real_core import Supervised
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_tiny_classifier, build_tiny_model

NUMBERS = [0.5, -1.0, 2.0, 0.25]
LAST = PoolingParams()
MEAN = PoolingParams(pooling_type="MEAN")


@pytest.fixture
def core(address: str) -> Iterator[ScriptedCore]:
    with ScriptedCore(address) as core:
        core.ready = msgspec.structs.replace(core.ready, embedding_size=len(NUMBERS))
        yield core


@pytest.fixture
async def engine(core: ScriptedCore, model: Path) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM.connect(core.address, model=str(model))
    await engine.wait_ready(PATIENCE)
    yield engine
    assert engine.get_num_unfinished_requests() == 0
    engine.shutdown()


async def only(engine: AsyncLLM, *args: Any, **options: Any) -> PoolingRequestOutput:
    async with asyncio.timeout(PATIENCE):
        (output,) = [output async for output in engine.encode(*args, **options)]
    assert output.finished
    return output


def emit(core: ScriptedCore, request: AddRequest) -> None:
    numbers = array("f", NUMBERS).tobytes()
    core.emit(request.request_id, finish="stop", embedding=numbers, num_cached_tokens=16)


async def test_the_one_output_has_the_numbers_of_the_core(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, MEAN, 7, priority=3))
    request = await receive(core, AddRequest)
    assert (request.pooling, request.priority) == (MEAN, 3)
    core.emit(request.request_id, num_computed_tokens=2)  # no output of the stream
    emit(core, request)
    output = await asking
    assert (output.request_id, output.outputs.data) == (7, NUMBERS)
    assert (output.prompt_token_ids, output.num_cached_tokens) == (PROMPT, 16)
    assert (output.finish_reason, output.error) == ("stop", None)


async def test_add_request_with_pooling_parameters_has_the_same_output(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    stream = await engine.add_request("r", PROMPT, MEAN, priority=3)
    request = await receive(core, AddRequest)
    assert (request.pooling, request.priority) == (MEAN, 3)
    emit(core, request)
    (output,) = [output async for output in stream]
    assert isinstance(output, PoolingRequestOutput) and output.outputs.data == NUMBERS


async def test_outputs_that_are_processed_together_keep_the_numbers(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, LAST, "r"))
    name = (await receive(core, AddRequest)).request_id
    last = SequenceOutput(name, finish_reason="stop", embedding=array("f", NUMBERS).tobytes())
    core.emit_all([SequenceOutput(name), last])
    assert (await asking).outputs.data == NUMBERS


async def test_an_abort_ends_with_no_numbers(engine: AsyncLLM, core: ScriptedCore) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, LAST, "r"))
    request = await receive(core, AddRequest)
    await engine.abort("r")
    assert await receive(core, Abort) == Abort([request.request_id])
    emit(core, request)  # it had ended just before
    output = await asking
    assert (output.finish_reason, output.outputs.data) == ("abort", [])


async def test_a_reader_that_leaves_aborts(engine: AsyncLLM, core: ScriptedCore) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, LAST, "r"))
    request = await receive(core, AddRequest)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await receive(core, Abort) == Abort([request.request_id])


async def test_an_error_of_the_core_comes_in_the_output(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, LAST, "r"))
    request = await receive(core, AddRequest)
    core.emit(request.request_id, finish="error", error=("request_timeout", "too late"))
    output = await asking
    assert (output.finish_reason, output.outputs.data) == ("error", [])
    assert (output.error.code, output.error.message) == ("request_timeout", "too late")


@pytest.mark.parametrize(
    ("prompt", "params", "options", "problem"),
    [
        ([], LAST, {}, "the prompt is empty"),
        ([1] * 1001, LAST, {}, "the prompt has 1001 tokens"),
        ([1001], LAST, {}, "of the model's vocabulary"),
        (PROMPT, PoolingParams(dimensions=5), {}, "dimensions must be at most 4"),
        (PROMPT, SamplingParams(), {}, "pooling_params must be PoolingParams"),
        (PROMPT, LAST, {"priority": "high"}, "priority must be"),
        (PROMPT, LAST, {"on_progress": 3}, "on_progress must be"),
        (PROMPT, LAST, {"on_delta": print}, "on_delta needs"),
        (PROMPT, LAST, {"tokenization_kwargs": 3}, "tokenization_kwargs must be"),
        (PROMPT, LAST, {"resume_token_ids": [1]}, "resume_token_ids are of an answer"),
    ],
)
async def test_bad_input_is_refused_by_name_and_leaves_nothing(
    prompt: Any,
    params: Any,
    options: dict[str, Any],
    problem: str,
    engine: AsyncLLM,
    core: ScriptedCore,
) -> None:
    with pytest.raises(ValidationError, match=problem):
        await only(engine, prompt, params, "r", **options)
    await engine.check_health()
    assert not [message for message in core.received() if isinstance(message, AddRequest)]


async def test_a_text_that_is_too_long_is_refused(engine: AsyncLLM) -> None:
    with pytest.raises(PromptTooLongError):
        await only(engine, "a b " * 5000, LAST, "r")


async def test_a_prompt_may_fill_the_context(engine: AsyncLLM, core: ScriptedCore) -> None:
    asking = asyncio.create_task(only(engine, [1] * 1000, LAST, "r"))
    emit(core, await receive(core, AddRequest))
    assert (await asking).finish_reason == "stop"


async def test_an_id_in_use_is_refused(engine: AsyncLLM, core: ScriptedCore) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, LAST, "r"))
    request = await receive(core, AddRequest)
    with pytest.raises(ValidationError, match="is open already"):
        await only(engine, PROMPT, LAST, "r")
    emit(core, request)
    await asking


async def test_a_core_that_cannot_embed_is_not_asked(address: str, model: Path) -> None:
    with ScriptedCore(address) as core:
        engine = AsyncLLM.connect(core.address, model=str(model))
        await engine.wait_ready(PATIENCE)
        assert await engine.get_supported_tasks() == ("generate",)
        with pytest.raises(ValidationError, match="makes no embeddings"):
            await only(engine, PROMPT, LAST, "r")
        engine.shutdown()


async def test_the_next_core_gets_the_request_whole(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, MEAN, "r"))
    first = await receive(core, AddRequest)
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with ScriptedCore(address, epoch=2) as following:
        following.ready = msgspec.structs.replace(following.ready, embedding_size=len(NUMBERS))
        again = await receive(following, AddRequest)
        assert (again.pooling, again.prompt_token_ids) == (MEAN, PROMPT)
        assert again.resume_token_ids == [] and again.request_id != first.request_id
        emit(following, again)
        output = await asking
    assert output.outputs.data == NUMBERS and output.metrics.num_resubmits == 1


async def test_the_next_core_classifies_if_it_can(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    core.ready = msgspec.structs.replace(core.ready, tasks=["embed", "classify"])
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    params = PoolingParams(task="classify")
    for epoch, tasks in ((2, ["embed", "classify"]), (3, ["generate", "embed"])):
        with ScriptedCore(address, epoch=epoch) as following:
            following.ready = msgspec.structs.replace(
                following.ready, embedding_size=len(NUMBERS), tasks=tasks
            )
            await engine.wait_ready(PATIENCE)
            assert await engine.get_supported_tasks() == tuple(tasks)
            if epoch == 2:
                asking = asyncio.create_task(only(engine, PROMPT, params, "r"))
                assert (await receive(following, AddRequest)).pooling == params
            else:
                output = await asking
        await settle(lambda: not engine.is_ready)
    assert output.finish_reason == "error" and "no task 'classify'" in output.error.message


async def test_a_next_core_with_fewer_dimensions_ends_it(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    asking = asyncio.create_task(only(engine, PROMPT, PoolingParams(dimensions=4), "r"))
    await receive(core, AddRequest)
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with ScriptedCore(address, epoch=2) as following:
        following.ready = msgspec.structs.replace(following.ready, embedding_size=3)
        output = await asking
    assert output.finish_reason == "error" and "dimensions" in output.error.message


def test_a_client_of_an_older_version_asks_for_answers() -> None:
    """Messages grow at their end, and what is absent there has its default."""
    request = AddRequest("r", PROMPT, SamplingParams(), 0.0)
    fields = msgspec.msgpack.decode(encode(request))
    assert decode_client_message(msgspec.msgpack.encode(fields[:-1])) == request


# ---- real cores


LONG_PROMPT = [5 + number % 300 for number in range(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("embedding"))


def start(folder: Path) -> Supervised:
    """Its core reads a prompt in chunks of four tokens."""
    arguments = AsyncEngineArgs(
        str(folder), threads=1, max_num_batched_tokens=4, max_step_seconds=0
    )
    return Supervised(arguments, stall_seconds=PATIENCE)


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[Supervised]:
    supervised = start(folder)
    yield supervised
    supervised.close()


@pytest.fixture
async def supervised(real: Supervised) -> AsyncIterator[Supervised]:
    """The module's; each test leaves it with a core, and without a request."""
    await real.wait_ready()
    yield real
    assert real.engine.get_num_unfinished_requests() == 0
    metrics = await real.engine.metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


async def begin(
    engine: AsyncLLM, params: PoolingParams, salt: str
) -> asyncio.Task[PoolingRequestOutput]:
    """The request "r", when a part of its prompt has been read, as far as is known."""
    is_read = asyncio.Event()

    def note(progress: RequestProgress) -> None:
        if progress.num_computed_tokens:
            is_read.set()

    salted: Any = {"prompt_token_ids": LONG_PROMPT, "cache_salt": salt}
    asking = asyncio.create_task(only(engine, salted, params, "r", on_progress=note))
    await is_read.wait()
    return asking


async def ask_amid_kill(supervised: Supervised, params: PoolingParams) -> PoolingRequestOutput:
    """What the next core gives, as the first one dies amid the prompt."""
    for attempt in range(10):
        asking = await begin(supervised.engine, params, f"{params} {attempt}")
        supervised.core.process.kill()
        await supervised.replace()
        output = await asking
        if output.metrics.num_resubmits:
            return output  # else it had the embedding before it died
    raise AssertionError("no core died in time")


async def ask_amid_sleep(
    engine: AsyncLLM, params: PoolingParams, level: int, mode: PauseMode
) -> PoolingRequestOutput:
    asking = await begin(engine, params, f"{mode} {level}")
    await engine.sleep(level, mode=mode)
    await engine.wake_up()
    return await asking


async def test_sleep_amid_a_prompt_changes_no_embedding_unless_it_ends_it(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    undisturbed = await only(engine, LONG_PROMPT, MEAN, "undisturbed")
    modes: tuple[PauseMode, ...] = ("keep", "wait", "abort")
    for level, mode in itertools.product((1, 2), modes):
        output = await ask_amid_sleep(engine, MEAN, level, mode)
        if mode == "abort" and output.finish_reason == "abort":  # else it had ended before
            assert output.outputs.data == []
        else:
            assert output.outputs.data == undisturbed.outputs.data
    assert await engine.get_supported_tasks() == ("generate", "embed")


async def test_an_abort_amid_a_prompt_ends_with_no_numbers_and_frees_its_blocks(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    for attempt in range(10):
        asking = await begin(engine, MEAN, f"abort {attempt}")
        await engine.abort("r")
        output = await asking
        metrics = await engine.metrics()
        assert metrics["num_blocks_free"] == metrics["num_blocks_total"]
        if output.finish_reason == "abort":
            break  # else it had ended before
    assert (output.finish_reason, output.outputs.data) == ("abort", [])
    assert output.metrics.core_confirmed


@pytest.mark.slow
async def test_embeddings_equal_transformers_also_after_the_core_was_killed(
    folder: Path, supervised: Supervised
) -> None:
    """It dies amid each prompt, which the next core reads from its start."""
    engine, prompt = supervised.engine, LONG_PROMPT
    params = {kind: PoolingParams(pooling_type=kind) for kind in ("LAST", "MEAN", "CLS")}
    undisturbed = {kind: await only(engine, prompt, params[kind], kind) for kind in params}
    for kind in params:
        output = await ask_amid_kill(supervised, params[kind])
        assert output.outputs.data == undisturbed[kind].outputs.data
        assert output.metrics.num_resubmits == 1
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").base_model
    with torch.inference_mode():
        states = model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    pooled = {"LAST": states[-1], "MEAN": states.mean(0), "CLS": states[0]}
    for kind, output in undisturbed.items():
        expected = torch.nn.functional.normalize(pooled[kind], dim=-1)
        assert (torch.tensor(output.outputs.data) - expected).abs().max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("task", "num_labels"), [("classify", 3), ("score", 1)])
async def test_classes_equal_transformers_also_after_sleep_and_a_kill_amid_the_prompt(
    task: str, num_labels: int, tmp_path: Path
) -> None:
    folder = build_tiny_classifier(tmp_path, num_labels=num_labels)
    params = PoolingParams(task=task)
    supervised = start(folder)
    await supervised.wait_ready()
    engine = supervised.engine
    undisturbed = (await only(engine, LONG_PROMPT, params, "undisturbed")).outputs.data
    for level in (1, 2):
        output = await ask_amid_sleep(engine, params, level, "keep")
        assert output.outputs.data == undisturbed
    output = await ask_amid_kill(supervised, params)
    assert output.outputs.data == undisturbed and output.metrics.num_resubmits == 1
    metrics = await engine.metrics()
    supervised.close()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        logits = model(torch.tensor([LONG_PROMPT]), use_cache=False).logits[0]
    expected = logits.softmax(0) if num_labels > 1 else torch.sigmoid(logits)
    assert (torch.tensor(undisturbed) - expected).abs().max() <= 1e-5
