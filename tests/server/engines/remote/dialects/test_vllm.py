"""The dialect of vLLM, against what a real server has said (`recorded/`)."""

import time
from typing import Any

import msgspec
import orjson
import pytest

from engine import LoRARequest, PoolingParams, SamplingParams, StructuredOutputsParams, demo_model
from engine.client.text.tokenizer import Tokenizer
from engine.errors import ValidationError
from engine.ipc import AddRequest
from server.engines.remote.dialects.dialect import Ask, RemoteFacts, RemoteLoad, Step
from server.engines.remote.dialects.vllm import (
    MAX_METRICS_LENGTH,
    VLLM,
    VLLMReader,
    cache_tokens,
    load_of,
)
from server.engines.remote.wire.exchange import Call
from server.engines.remote.wire.problems import BadStatus, Broken, Lie, Misfit, Silent
from tests.server.engines.remote.recorded.exchanges import Exchange, recorded
from tests.server.engines.remote.recorded.record import FORM, PROBE, QUESTION, SAMPLED

SCALED, PLAIN = recorded("vllm"), recorded("vllm-plain")
FACTS = ("models", "abort of none", "metrics", "health", "tokenize")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(demo_model())


def saying(exchanges: dict[str, Exchange], **others: str) -> Ask:
    """Replies as the server did; `others` name other exchanges than those of `FACTS`."""
    by_path = {exchanges[name].path: exchanges[name] for name in FACTS}
    by_path |= {f"/{path}": exchanges[name] for path, name in others.items()}

    async def ask(call: Call) -> Any:
        exchange = by_path[call.path]
        if exchange.status != 200:
            raise BadStatus(exchange.status, exchange.body.decode())
        is_json = exchange.content_type == "application/json"
        return orjson.loads(exchange.body) if is_json else exchange.body.decode()

    return ask


def joined(tokenizer: Tokenizer, *, has_token_route: bool = True) -> VLLM:
    vllm = VLLM(tokenizer, None)
    vllm.join("m", 8192, has_token_route=has_token_route)
    return vllm


def request(prompt: list[int], *resumed: int, salt: str = "", **params: Any) -> AddRequest:
    return AddRequest(
        "r",
        prompt,
        SamplingParams(**{"temperature": 0.0, **params}),
        arrival_time=0.0,
        resume_token_ids=list(resumed),
        cache_salt=salt,
    )


def read(exchange: Exchange, *, has_logprobs: bool = False) -> list[Step]:
    reader = VLLMReader(prompt=prompt_of(exchange), has_logprobs=has_logprobs)
    steps = [reader.read(event) for event in exchange.events if event != b"[DONE]"]
    return [step for step in steps if step is not None]


def prompt_of(exchange: Exchange) -> list[int]:
    body = orjson.loads(exchange.asked)
    prompt: list[int] = body.get("token_ids", body.get("prompt"))
    return prompt


def ids_of(exchange: Exchange) -> list[int]:
    return [token_id for step in read(exchange) for token_id in step.token_ids]


# ---- joining ------------------------------------------------------------------------------------


async def test_its_routes_say_how_much_it_takes(tokenizer: Tokenizer) -> None:
    for exchanges in (SCALED, PLAIN):
        facts = await VLLM(tokenizer, None).probe(saying(exchanges))
        assert facts == RemoteFacts(max_model_len=8192, num_kv_tokens=4096 * 128)


async def test_without_its_route_for_tokens_it_is_asked_for_completions(
    tokenizer: Tokenizer,
) -> None:
    paths = []
    for exchanges in (SCALED, PLAIN):
        vllm = VLLM(tokenizer, None)
        await vllm.probe(saying(exchanges))
        paths.append((vllm.call(request([5]), "r1").path, vllm.abort("r1")))
    abort = Call("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-r1"]})
    assert paths == [("/inference/v1/generate", abort), ("/v1/completions", None)]


async def test_a_model_that_it_does_not_serve_is_a_misfit(tokenizer: Tokenizer) -> None:
    with pytest.raises(Misfit, match="serves no model 'other'"):
        await VLLM(tokenizer, "other").probe(saying(SCALED))
    named = VLLM(tokenizer, "m")
    await named.probe(saying(SCALED))
    assert (named.call(request([5]), "r").body or {})["model"] == "m"


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ([("small", None, None), ("ours", None, None)], "ours"),
        ([("adapted", "big", "big"), ("big", None, "/models/big")], "big"),
        ([("big", None, "/models/big"), ("alias", None, "/models/big")], "big"),
        ([("small", None, "/models/small"), ("big", None, "/models/big")], None),
    ],
    ids=["of-the-same-name", "no-adapter", "of-two-names", "another"],
)
async def test_of_several_models_it_is_that_of_our_name_or_the_only_one(
    tokenizer: Tokenizer, listed: list[tuple[str, str | None, str | None]], chosen: str | None
) -> None:
    async def ask(call: Call) -> Any:
        data = [
            {"id": name, "parent": parent, "root": root, "max_model_len": 64}
            for name, parent, root in listed
        ]
        return {"data": data} if call.path == "/v1/models" else ""

    vllm = VLLM(tokenizer, None, "ours")
    if chosen is None:
        with pytest.raises(Misfit, match=";model=NAME says which it is"):
            await vllm.probe(ask)
    else:
        await vllm.probe(ask)
        assert (vllm.call(request([5]), "r").body or {})["model"] == chosen


async def test_a_key_that_it_refuses_is_not_taken_for_an_old_version(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadStatus, match="401"):
        await VLLM(tokenizer, None).probe(saying(SCALED, **{"v1/models": "no key for models"}))


async def test_what_is_no_vllm_is_a_misfit(tokenizer: Tokenizer) -> None:
    async def ask(_: Call) -> Any:
        return {"data": [{"id": "m"}]}  # any server that speaks as OpenAI's does

    with pytest.raises(Misfit, match="no vLLM server"):
        await VLLM(tokenizer, None).probe(ask)


async def test_it_has_the_ids_that_we_have(tokenizer: Tokenizer) -> None:
    theirs = await joined(tokenizer).tokenize(saying(SCALED), PROBE)
    assert theirs == tokenizer.encode(PROBE, add_special_tokens=False)


async def test_a_look_tells_its_load(tokenizer: Tokenizer) -> None:
    assert await joined(tokenizer).look(saying(SCALED)) == RemoteLoad(0, 0, 0.0)


async def test_a_server_whose_metrics_take_too_long_lives(tokenizer: Tokenizer) -> None:
    async def ask(call: Call) -> Any:
        if call.path == "/metrics":
            raise Silent("nothing for 5 s")
        return await saying(SCALED)(call)

    vllm = VLLM(tokenizer, None)
    assert (await vllm.probe(ask)).num_kv_tokens is None
    assert await vllm.look(ask) == RemoteLoad()


@pytest.mark.parametrize("number", ["1.2.3", "-", "1e999", "-4"])
async def test_a_gauge_that_is_no_number_counts_for_nothing(
    tokenizer: Tokenizer, number: str
) -> None:
    text = f'vllm:num_requests_running{{engine="0"}} {number}\n'
    text += f'vllm:cache_config_info{{num_gpu_blocks="{"9" * 5000}",block_size="16"}} 1\n'

    async def ask(call: Call) -> Any:
        return text if call.path == "/metrics" else await saying(SCALED)(call)

    assert (await joined(tokenizer).look(ask)).num_running == 0
    assert (await VLLM(tokenizer, None).probe(ask)).num_kv_tokens is None


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running{\n",
        b"vllm:num_requests_running{" + b"a" * 2000 + b"\n",
        b"vllm:cache_config_info{" + b"a" * (1 << 19) + b"}\n",
        b"vllm:cache_config_info{" + b'a="' * (1 << 17) + b"}\n",
        b"vllm:kv_cache_usage_perc{} " + b"1" * 2000 + b"x\n",
    ],
)
def test_figures_that_have_no_end_hold_up_no_worker(line: bytes) -> None:
    metrics = line * (MAX_METRICS_LENGTH // len(line))
    begun = time.process_time()
    assert load_of(metrics) == RemoteLoad()
    assert cache_tokens(metrics) is None
    assert time.process_time() - begun < 5.0  # which took hours


async def test_a_door_whose_core_has_died_is_not_well(tokenizer: Tokenizer) -> None:
    with pytest.raises(Broken, match="core is not well"):
        await joined(tokenizer).look(saying(SCALED, health="health of a dead core"))


# ---- what it is asked ---------------------------------------------------------------------------

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("length", {"max_tokens": 4}),
    ("end", {"max_tokens": 200}),
    ("sampled", dict(SAMPLED)),
    ("form", {"max_tokens": 3, "structured_outputs": FORM}),
]


@pytest.mark.parametrize("exchanges", [SCALED, PLAIN], ids=["tokens", "completions"])
@pytest.mark.parametrize(("name", "params"), ASKED, ids=[name for name, _ in ASKED])
def test_a_real_server_has_taken_what_we_ask(
    tokenizer: Tokenizer, exchanges: dict[str, Exchange], name: str, params: dict[str, Any]
) -> None:
    exchange = exchanges[name]
    name = orjson.loads(exchange.asked)["request_id"]
    vllm = joined(tokenizer, has_token_route=exchanges is SCALED)
    prompt = tokenizer.encode(QUESTION, add_special_tokens=False)
    call = vllm.call(request(prompt, **params), name)
    assert (call.path, orjson.loads(orjson.dumps(call.body))) == (
        exchange.path,
        orjson.loads(exchange.asked),
    )
    assert exchange.status == 200
    assert ids_of(exchange)


def test_an_answer_goes_on_after_its_tokens(tokenizer: Tokenizer) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 10, "min_tokens": 4}
    for has_token_route in (True, False):
        vllm = joined(tokenizer, has_token_route=has_token_route)
        begun = vllm.call(request([5, 6], **params), "r").body or {}
        going_on = vllm.call(request([5, 6], 7, 8, 9, **params), "r").body or {}
        assert begun.get("token_ids", begun.get("prompt")) == [5, 6]
        assert going_on.get("token_ids", going_on.get("prompt")) == [5, 6, 7, 8, 9]
        first: Any = begun.get("sampling_params", begun)
        then: Any = going_on.get("sampling_params", going_on)
        assert (first["max_tokens"], first["min_tokens"], first["seed"]) == (10, 4, 7)
        assert (then["max_tokens"], then["min_tokens"]) == (7, 1)
        assert then["seed"] not in (7, first["seed"])  # its first draws are those of other tokens


def test_an_answer_without_a_limit_ends_with_the_context(tokenizer: Tokenizer) -> None:
    body = joined(tokenizer).call(request([5, 6], max_tokens=None), "r").body or {}
    params: Any = body["sampling_params"]
    assert params["max_tokens"] == 8190


def test_no_user_is_named_to_it(tokenizer: Tokenizer) -> None:
    """Of a salt vLLM takes 128 characters, and neither '@' nor '/'."""
    salts = [
        (joined(tokenizer).call(request([5], salt=salt), "r").body or {}).get("cache_salt")
        for salt in ("ann@example.org", "bob/" * 99, "")
    ]
    assert [salt and len(str(salt)) for salt in salts] == [64, 64, None]
    assert len(set(salts)) == 3
    assert all(set(str(salt)) <= set("0123456789abcdef") for salt in salts[:2])


@pytest.mark.parametrize(
    ("parameter", "params"),
    [
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("logprob_token_ids", {"logprob_token_ids": [3]}),
        ("logprobs", {"logprobs": -1}),
        ("bad_words", {"bad_words": ["x"], "bad_words_token_ids": [[3]]}),
        ("trace_decode_token_ids", {"trace_decode_token_ids": [3]}),
        ("thinking_token_budget", {"thinking_token_budget": 5}),
        (
            "structured_outputs",
            {"structured_outputs": StructuredOutputsParams(regex="a", begun="a")},
        ),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(
    tokenizer: Tokenizer, parameter: str, params: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as refused:
        joined(tokenizer).call(request([5], **params), "r")
    assert refused.value.parameter == parameter


def test_what_completions_cannot_tell_is_refused_by_name(tokenizer: Tokenizer) -> None:
    asked = request([5], logprobs=2)
    joined(tokenizer).call(asked, "r")
    with pytest.raises(ValidationError) as refused:
        joined(tokenizer, has_token_route=False).call(asked, "r")
    assert refused.value.parameter == "logprobs"


def test_neither_embeddings_nor_adapters_are_asked_for(tokenizer: Tokenizer) -> None:
    plain = request([5])
    for asked in (
        msgspec.structs.replace(plain, pooling=PoolingParams()),
        msgspec.structs.replace(plain, lora=LoRARequest("a", 1, "/a")),
    ):
        with pytest.raises(ValidationError):
            joined(tokenizer).call(asked, "r")


# ---- what it says -------------------------------------------------------------------------------


@pytest.mark.parametrize("exchanges", [SCALED, PLAIN], ids=["tokens", "completions"])
def test_an_answer_is_read_with_the_token_that_ended_it(
    tokenizer: Tokenizer, exchanges: dict[str, Exchange]
) -> None:
    steps = read(exchanges["end"])
    ids = ids_of(exchanges["end"])
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["stop"]
    assert len(ids) > 40
    assert (ids[-1], ids.count(2)) == (2, 1)
    assert tokenizer.decode(ids[:-1]).startswith("Here are some of the people of Tidewick")
    assert steps[0].num_prompt_tokens == len(tokenizer.encode(QUESTION, add_special_tokens=False))


def test_both_routes_give_the_same_tokens() -> None:
    assert ids_of(SCALED["end"]) == ids_of(PLAIN["end"])


def test_an_answer_that_was_cut_has_as_many_tokens_as_were_asked_for() -> None:
    steps = read(SCALED["length"])
    assert len(ids_of(SCALED["length"])) == 4
    assert steps[-1].finish_reason == "length"


def test_logprobs_begin_with_the_tokens_own() -> None:
    steps = read(SCALED["logprobs"], has_logprobs=True)
    for step in steps:
        assert step.logprobs is not None
        for token_id, entries in zip(step.token_ids, step.logprobs, strict=True):
            assert (entries[0][0], entries[0][2]) == (token_id, 1)  # it was greedy
            assert [rank for _, _, rank in entries] == [1, 2]
            assert 0 > entries[0][1] > entries[1][1]


def test_tokens_without_their_logprobs_are_no_answer() -> None:
    with pytest.raises(Broken, match="without their logprobs"):
        read(SCALED["length"], has_logprobs=True)


@pytest.mark.parametrize("name", ["no such token", "no such form"])
def test_a_refusal_in_a_reply_that_began_well_counts_as_its_own_status(name: str) -> None:
    assert SCALED[name].status == 200
    with pytest.raises(BadStatus) as refused:
        read(SCALED[name])
    assert (refused.value.status, refused.value.is_ours) == (400, True)


def test_a_core_that_dies_amid_an_answer_breaks_the_reply_only() -> None:
    """It says so, and `[DONE]`: whoever took that for an end would show half an answer."""
    assert SCALED["core killed"].events[-1] == b"[DONE]"
    with pytest.raises(Broken, match="EngineCore"):
        read(SCALED["core killed"])


def test_a_form_of_calls_that_it_cannot_read_is_refused_with_the_way_out(
    tokenizer: Tokenizer,
) -> None:
    """Of xgrammar, its first choice, it says only that something is wrong with the server."""
    failed = b'{"error": {"message": "Internal server error", "code": 500}}'
    died = b'{"error": {"message": "EngineCore encountered an issue.", "code": 500}}'
    calls = StructuredOutputsParams(grammar='%llguidance {}\nstart: "a"')
    for form, event, problem in (
        (calls, failed, BadStatus),
        (calls, died, Broken),
        (StructuredOutputsParams(grammar='start: "a"'), failed, Broken),
    ):
        reader = joined(tokenizer).reader(request([5], structured_outputs=form))
        with pytest.raises(problem) as refused:
            reader.read(event)
        assert ("backend guidance" in str(refused.value)) == (problem is BadStatus)


def test_an_aborted_answer_ends_as_aborted() -> None:
    assert [step.finish_reason for step in read(SCALED["aborted"])][-1] == "abort"


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"[]",
        b"{",
        b'{"choices": [{"token_ids": ["5"]}]}',
        b'{"choices": [{"token_ids": [5.5]}]}',
        b'{"choices": [{"text": "old"}]}',
        b'{"choices": [{"token_ids": [5], "finish_reason": "\xff"}]}',
        b'{"choices": ' + b"[" * 100_000,
        b'{"choices": [{"token_ids": [5], "finish_reason": "tired"}]}',
    ],
)
def test_what_is_no_event_of_its_is_broken(event: bytes) -> None:
    with pytest.raises(Broken):
        VLLMReader(prompt=[1], has_logprobs=False).read(event)


@pytest.mark.parametrize("exchanges", [SCALED, PLAIN], ids=["tokens", "completions"])
def test_the_last_token_tells_what_was_in_its_cache(exchanges: dict[str, Exchange]) -> None:
    usage = exchanges["length"].events[-2]
    assert b'"cached_tokens":0' in usage
    reader = VLLMReader(prompt=prompt_of(exchanges["length"]), has_logprobs=False)
    steps = [reader.read(event) for event in exchanges["length"].events[:-2]]
    assert steps[-1] is None  # it waits for what follows at once
    last = reader.read(usage.replace(b'"cached_tokens":0', b'"cached_tokens":9'))
    assert last is not None
    assert (last.num_cached_tokens, last.finish_reason, len(last.token_ids)) == (9, "length", 1)


def test_an_event_that_was_lost_shows_by_the_count() -> None:
    events = SCALED["end"].events
    reader = VLLMReader(prompt=prompt_of(SCALED["end"]), has_logprobs=False)
    reader.read(events[0])
    with pytest.raises(Broken, match="counts other tokens"):
        reader.read(events[2])


def test_other_tokens_of_the_prompt_than_were_sent_are_a_lie() -> None:
    sent = prompt_of(PLAIN["end"])
    reader = VLLMReader(prompt=[*sent[:-1], sent[-1] + 1], has_logprobs=False)
    with pytest.raises(Lie, match="other tokens than it was sent"):
        reader.read(PLAIN["end"].events[0])
