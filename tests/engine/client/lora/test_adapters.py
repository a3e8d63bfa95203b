"""Adapters of requests: against a core with a script, and real cores, which are killed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    BeamSearchParams,
    LoRARequest,
    PoolingParams,
    SamplingParams,
)
from engine.errors import RetryableRequestError, ValidationError
from engine.ipc import Abort, AddRequest, decode_client_message, encode
from engine.outputs import RequestOutput
from tests.engine.helpers.connected_engine import PROMPT, receive, settle
from tests.engine.helpers.connected_engine import engine as engine  # the fixture
from tests.engine.helpers.lora.adapters import build_adapter, greedy, merged_model
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.engine.test_real_core import Supervised
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_tiny_model

HASH = "f" * 64
LORA = LoRARequest("mine", 3, "/adapters/mine")
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def with_adapters(core: ScriptedCore) -> ScriptedCore:
    config = msgspec.structs.replace(core.ready.config, enable_lora=True, max_cpu_loras=3)
    core.ready = msgspec.structs.replace(core.ready, config=config)
    core.utilities |= {"add_lora": [HASH, ""], "list_loras": [3], "pin_lora": True}
    core.utilities["remove_lora"] = True
    return core


@pytest.fixture
def core(address: str) -> Iterator[ScriptedCore]:
    with ScriptedCore(address) as core:
        core.ready = msgspec.structs.replace(core.ready, embedding_size=2)
        yield with_adapters(core)


async def only(stream: Any) -> RequestOutput:
    """The last output of a stream."""
    async with asyncio.timeout(PATIENCE):
        outputs = [output async for output in stream]
    last: RequestOutput = outputs[-1]
    return last


def calls(core: ScriptedCore) -> list[str]:
    return [call.name for call in core.calls]


async def test_the_first_request_has_its_adapter_read_and_all_say_which(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    for _ in range(2):
        asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
        request = await receive(core, AddRequest)
        assert request.lora == LORA.located(HASH)
        core.emit(request.request_id, 67, finish="length")
        assert (await asking).lora_request == LORA.located(HASH)
        (call,) = core.calls
        assert (call.name, call.args) == ("add_lora", [msgspec.to_builtins(LORA), False])


async def test_each_of_several_answers_has_it(engine: AsyncLLM, core: ScriptedCore) -> None:
    params = SamplingParams(n=2, max_tokens=1)
    asking = asyncio.create_task(only(engine.generate(PROMPT, params, "r", lora_request=LORA)))
    for _ in range(2):
        request = await receive(core, AddRequest)
        assert request.lora == LORA.located(HASH)
        core.emit(request.request_id, 67, finish="length")
    assert (await asking).lora_request == LORA.located(HASH)


@pytest.mark.parametrize("is_fourth", [True, False])
async def test_embeddings_have_one_too(
    is_fourth: bool, engine: AsyncLLM, core: ScriptedCore
) -> None:
    arguments: dict[str, Any] = {"lora_request": LORA}
    if is_fourth:  # vLLM's order
        arguments = {"prompt_token_ids": LORA}
    asking = asyncio.create_task(only(engine.encode("text", PoolingParams(), "r", **arguments)))
    request = await receive(core, AddRequest)
    assert request.lora == LORA.located(HASH) and request.pooling == PoolingParams()
    core.emit(request.request_id, finish="stop", embedding=bytes(8))
    await asking


async def test_an_abort_while_the_adapter_is_read_sends_no_request(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    core.is_silent = True
    asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
    await settle(lambda: engine.get_num_unfinished_requests())
    await engine.abort("r")
    core.is_silent = False
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await engine.check_health()
    assert not [m for m in core.received() if isinstance(m, AddRequest | Abort)]


@pytest.mark.parametrize(
    ("lora_request", "problem"),
    [
        (object(), "lora_request must be a LoRARequest"),
        ("mine", "lora_request must be a LoRARequest"),
        (LORA, "lora_request: /adapters/mine: is a link"),
    ],
)
async def test_a_bad_adapter_is_refused_and_leaves_nothing(
    lora_request: Any, problem: str, engine: AsyncLLM, core: ScriptedCore
) -> None:
    core.utilities["add_lora"] = ["", "/adapters/mine: is a link"]
    for ask in (
        lambda: engine.generate(PROMPT, GREEDY, "r", lora_request=lora_request),
        lambda: engine.encode(PROMPT, PoolingParams(), "r", lora_request=lora_request),
    ):
        with pytest.raises(ValidationError, match=problem) as caught:
            await only(ask())
        assert caught.value.parameter == "lora_request"
    with pytest.raises(ValidationError, match=problem):
        await engine.add_lora(lora_request)
    assert engine.get_num_unfinished_requests() == 0
    assert not [message for message in core.received() if isinstance(message, AddRequest)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (("", 1, "/a"), "lora_name must be a text"),
        (("a", 0, "/a"), "lora_int_id must be an integer of at least 1, got 0"),
        (("a", True, "/a"), "lora_int_id must be an integer"),
        (("a", 1, ""), "lora_path must be a text"),
        (("a", 1, "/a\0b"), "lora_path must be a text without null characters"),
        (("a", 1, Path("/a")), "lora_path must be a string"),
        (("a" * 2000, 1, "/a"), "lora_name must be a string of at most 1024"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        LoRARequest(*fields)


def test_a_request_of_an_adapter_has_vllms_names() -> None:
    assert (LORA.name, LORA.adapter_id, LORA.path) == ("mine", 3, "/adapters/mine")
    assert LoRARequest("a", 1, "here").located().path == str(Path("here").absolute())


async def test_without_enable_lora_adapters_are_refused_at_once(address: str, model: Path) -> None:
    with ScriptedCore(address) as core:
        engine = AsyncLLM.connect(core.address, model=str(model))
        await engine.wait_ready(PATIENCE)
        for asking in (
            engine.add_request("r", PROMPT, GREEDY, lora_request=LORA),
            engine.add_lora(LORA),
        ):
            with pytest.raises(ValidationError, match="needs an engine that was started with"):
                await asking
        engine.shutdown()


async def test_adapters_are_kept_and_forgotten_by_number(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    assert await engine.add_lora(LORA) is True
    assert await engine.pin_lora(3) is True
    assert await engine.list_loras() == {3}
    assert await engine.remove_lora(3) is True
    core.utilities["add_lora"] = ["", "is gone"]
    with pytest.raises(ValidationError, match="is gone"):
        await only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA))
    assert calls(core) == ["add_lora", "pin_lora", "list_loras", "remove_lora", "add_lora"]


async def test_files_that_were_replaced_fail_the_requests_that_ask_for_the_old_ones_alone(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    refused = ("lora_unavailable", "/adapters/mine: is another adapter than before")
    for content_hash, error in ((HASH, None), (HASH, refused), ("e" * 64, None)):
        asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
        request = await receive(core, AddRequest)
        assert request.lora == LORA.located(content_hash)
        core.utilities["add_lora"] = ["e" * 64, ""]  # as another client had it read
        core.emit(request.request_id, finish="error" if error else "length", error=error)
        assert ((await asking).error is None) == (error is None)
    assert calls(core) == ["add_lora", "add_lora"]


async def test_the_next_core_is_asked_for_the_hash_again(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
    core.emit((await receive(core, AddRequest)).request_id, 67, finish="length")
    await asking
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with with_adapters(ScriptedCore(address, epoch=2)) as following:
        following.utilities["add_lora"] = ["e" * 64, ""]
        await engine.wait_ready(PATIENCE)
        asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
        request = await receive(following, AddRequest)
        assert request.lora == LORA.located("e" * 64)
        following.emit(request.request_id, 67, finish="length")
        await asking


async def test_a_beam_search_ends_where_the_next_core_finds_other_files(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    logprobs = [[[70, -0.5, 1], [71, -1.5, 2]]]
    params = BeamSearchParams(beam_width=1, max_tokens=9)
    asking = asyncio.create_task(only(engine.beam_search(PROMPT, "s", params, LORA)))
    await receive(core, AddRequest)
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with with_adapters(ScriptedCore(address, epoch=2)) as following:
        following.utilities["add_lora"] = ["", "/adapters/mine: is another adapter than before"]
        request = await receive(following, AddRequest)
        following.emit(request.request_id, 70, finish="length", logprobs=logprobs)
        output = await asking
    assert output.error is not None and output.error.code == "lora_unavailable"
    assert output.outputs[0].token_ids == [70]
    assert following.calls[0].args[0] == msgspec.to_builtins(LORA.located(HASH))


async def test_the_next_core_gets_request_and_hash_and_what_was_added(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    await engine.add_lora(LORA)
    await engine.pin_lora(3)
    asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
    await receive(core, AddRequest)
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with ScriptedCore(address, epoch=2) as following:
        with_adapters(following)
        again = await receive(following, AddRequest)
        assert again.lora == LORA.located(HASH)
        following.emit(again.request_id, 67, finish="length")
        assert (await asking).metrics is not None
        await engine.list_loras()
        assert calls(following) == ["add_lora", "pin_lora", "list_loras"]


def adapter(number: int) -> LoRARequest:
    return LoRARequest(f"{number}", number, f"/adapters/{number}")


async def asked_of_the_next(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> list[tuple[str, int]]:
    """Kill the core; what the next one is asked for when it is asked for anything."""
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with with_adapters(ScriptedCore(address, epoch=2)) as following:
        await engine.wait_ready(PATIENCE)
        await engine.list_loras()
        return [
            (call.name, call.args[0]["lora_int_id"] if call.name == "add_lora" else call.args[0])
            for call in following.calls[:-1]
        ]


async def test_the_next_core_reads_what_is_pinned_and_the_latest_for_which_there_is_room(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    for number in (1, 2, 3, 4, 2):
        await engine.add_lora(adapter(number))
    await engine.pin_lora(1)
    expected = [("add_lora", 1), ("pin_lora", 1), ("add_lora", 4), ("add_lora", 2)]
    assert await asked_of_the_next(engine, core, address) == expected


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_adapter_that_a_request_brought_is_pinned_in_the_next_core_as_well(
    is_known: bool, engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    if not is_known:
        await engine.pin_lora(3)  # of another client
    asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
    core.emit((await receive(core, AddRequest)).request_id, 67, finish="length")
    await asking
    if is_known:
        await engine.pin_lora(3)
    expected = [("add_lora", 3), ("pin_lora", 3)]
    assert await asked_of_the_next(engine, core, address) == expected


async def test_what_a_core_was_not_asked_for_because_the_caller_left_the_next_call_asks_for(
    engine: AsyncLLM, core: ScriptedCore, address: str
) -> None:
    for number in (1, 2):
        await engine.add_lora(adapter(number))
        await engine.pin_lora(number)
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with with_adapters(ScriptedCore(address, epoch=2)) as following:
        del following.utilities["pin_lora"]  # that call is not answered
        await engine.wait_ready(PATIENCE)
        asking = asyncio.create_task(engine.list_loras())
        await settle(lambda: "pin_lora" in calls(following))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        following.utilities["pin_lora"] = True
        await engine.list_loras()
        names = ["add_lora", "pin_lora", "add_lora", "pin_lora", "add_lora", "pin_lora"]
        assert calls(following) == [*names, "list_loras"]
        numbers = [call.args[0] for call in following.calls if call.name == "pin_lora"]
        assert sorted(numbers) == [1, 1, 2]


async def test_a_core_that_dies_while_it_reads_an_adapter_may_be_asked_again(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    core.is_silent = True
    asking = asyncio.create_task(only(engine.generate(PROMPT, GREEDY, "r", lora_request=LORA)))
    await settle(lambda: engine.get_num_unfinished_requests())
    await asyncio.sleep(0)
    await asyncio.to_thread(core.kill)
    with pytest.raises(RetryableRequestError):
        await asking
    assert engine.get_num_unfinished_requests() == 0


def test_a_client_of_an_older_version_asks_for_no_adapter() -> None:
    request = AddRequest("r", PROMPT, SamplingParams(), 0.0)
    fields = msgspec.msgpack.decode(encode(request))
    assert decode_client_message(msgspec.msgpack.encode(fields[:-2])) == request


# ---- real cores


@pytest.mark.slow
async def test_answers_equal_merged_weights_also_after_the_core_was_killed(
    tmp_path: Path,
) -> None:
    """It dies amid answers of two adapters and of none; bad adapters come meanwhile."""
    folder = build_tiny_model(tmp_path / "model")
    adapters = [build_adapter(tmp_path / f"{n}", folder, seed=n, rank=n + 3) for n in range(2)]
    models = [*(merged_model(folder, adapter) for adapter in adapters)]
    expected = [greedy(model, PROMPT, 60) for model in models]
    arguments = AsyncEngineArgs(
        str(folder), threads=1, enable_lora=True, max_loras=2, pace=20
    )  # so that none has ended before it dies
    supervised = Supervised(arguments, stall_seconds=PATIENCE)
    await supervised.wait_ready()
    engine = supervised.engine
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    loras = [LoRARequest(f"{n}", n + 1, str(adapters[n])) for n in range(2)]
    undisturbed = await only(engine.generate(PROMPT, params, "base"))

    streams = [
        await engine.add_request(str(number), PROMPT, params, lora_request=lora)
        for number, lora in enumerate([*loras, None])
    ]
    firsts = [await stream.get() for stream in streams]
    assert not any(first.finished for first in firsts)
    supervised.core.process.kill()
    await supervised.replace()
    with pytest.raises(ValidationError, match="cannot be read"):
        await only(engine.generate(PROMPT, params, "bad", lora_request=LoRARequest("x", 9, "/no")))
    answers = [await only(stream) for stream in streams]
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    assert tokens == [*expected, list(undisturbed.outputs[0].token_ids)]
    assert [answer.metrics.num_resubmits for answer in answers if answer.metrics] == [1, 1, 1]

    assert await engine.list_loras() == {1, 2}
    (adapters[0] / "adapter_config.json").write_text("{}")
    assert await engine.remove_lora(1)
    with pytest.raises(ValidationError, match="peft_type must be 'LORA'"):
        await engine.add_lora(loras[0])
    again = await only(engine.generate(PROMPT, params, "again", lora_request=loras[1]))
    assert list(again.outputs[0].token_ids) == expected[1]
    supervised.close()


@pytest.mark.slow
async def test_embeddings_with_an_adapter_equal_merged_weights(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "model")
    adapter = build_adapter(tmp_path / "adapter", folder)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), threads=1, enable_lora=True))
    lora = LoRARequest("a", 1, str(adapter))
    try:
        (output,) = [o async for o in engine.encode(PROMPT, PoolingParams(), "r", lora)]
        (base,) = [o async for o in engine.encode(PROMPT, PoolingParams(), "r")]
        config: Any = engine.get_lora_config()
        assert (await config).max_lora_rank == 16
    finally:
        engine.shutdown()
    with torch.inference_mode():
        merged = merged_model(folder, adapter).base_model
        states = merged(torch.tensor([PROMPT]), use_cache=False).last_hidden_state[0, -1]
    expected = torch.nn.functional.normalize(states, dim=-1)
    assert (torch.tensor(output.outputs.data) - expected).abs().max() <= 1e-5
    assert (torch.tensor(base.outputs.data) - expected).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["transformers", "fused"])
async def test_adapters_outlive_sleep(impl: str, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "model")
    adapters = [build_adapter(tmp_path / f"{n}", folder, seed=n) for n in range(2)]
    loras = [LoRARequest(f"{n}", n + 1, str(adapters[n])) for n in range(2)]
    arguments = AsyncEngineArgs(
        str(folder), threads=1, model_impl=impl, enable_lora=True, max_loras=2
    )
    engine = AsyncLLM.from_engine_args(arguments)
    try:
        await only(engine.generate(PROMPT, GREEDY, "r", lora_request=loras[0]))
        await engine.sleep(level=2)
        assert await engine.list_loras() == {1}
        await engine.wake_up()
        for number, lora in enumerate(loras):  # the second one is read after it
            answer = await only(engine.generate(PROMPT, GREEDY, "r", lora_request=lora))
            expected = greedy(merged_model(folder, adapters[number]), PROMPT, 20)
            assert list(answer.outputs[0].token_ids) == expected
    finally:
        engine.shutdown()
