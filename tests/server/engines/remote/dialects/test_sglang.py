"""SGLang's wire format, as documented: no server of it runs on a CPU from a package index."""

from typing import Any

import orjson
import pytest

from engine.errors import ValidationError
from engine.grammar.params import StructuredOutputsParams as Form
from engine.ipc import AddRequest
from engine.sampling_params import SamplingParams
from server.engines.remote.checkpoint import Checkpoint
from server.engines.remote.dialects.dialect import RemoteLoad
from server.engines.remote.dialects.sglang import SGLang
from server.engines.remote.wire.exchange import Call
from server.engines.remote.wire.problems import BadStatus, Broken, Misfit
from tests.server.engines.remote.conftest import PROMPT, asked

INFO = {
    "context_length": 4096,
    "max_req_input_len": 4090,
    "max_total_num_tokens": 20_000,
    "internal_states": [{"effective_max_running_requests_per_dp": 32}],
}


def asking(replies: dict[str, Any]) -> Any:
    async def ask(call: Call) -> Any:
        reply = replies.get(call.path, BadStatus(404, "no such route"))
        if isinstance(reply, Exception):
            raise reply
        return reply

    return ask


async def joined(checkpoint: Checkpoint) -> SGLang:
    dialect = SGLang(checkpoint.tokenizer, None)
    await dialect.probe(asking({"/server_info": INFO}))
    return dialect


def request(**more: Any) -> AddRequest:
    params = SamplingParams(**{"max_tokens": 20, "temperature": 0, "seed": 5, **more})
    return AddRequest("r", PROMPT, params, 0.0)


def event(ids: list[int], number: int, reason: Any = None, **about: Any) -> bytes:
    meta = {"completion_tokens": number, "prompt_tokens": 14, "finish_reason": reason, **about}
    return orjson.dumps({"text": "", "output_ids": ids, "meta_info": meta})


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_what_the_server_is_the_probe_finds(checkpoint: Checkpoint, path: str) -> None:
    facts = await SGLang(checkpoint.tokenizer, None).probe(asking({path: INFO}))
    assert (facts.max_model_len, facts.max_num_seqs, facts.num_kv_tokens) == (4090, 32, 20_000)


@pytest.mark.parametrize("replies", [{}, {"/server_info": {}}, {"/server_info": "ok"}])
async def test_what_is_no_such_server_is_refused_in_one_line(
    checkpoint: Checkpoint, replies: dict[str, Any]
) -> None:
    with pytest.raises(Misfit, match="it is no SGLang server"):
        await SGLang(checkpoint.tokenizer, None).probe(asking(replies))


async def test_its_load_is_the_sum_of_its_ranks(checkpoint: Checkpoint) -> None:
    dialect = await joined(checkpoint)
    loads = [{"num_reqs": 5, "num_waiting_reqs": 2}, {"num_reqs": 3, "num_waiting_reqs": 0}]
    assert await dialect.look(asking({"/get_load": loads})) == RemoteLoad(6, 2)
    assert await dialect.look(asking({"/health": ""})) == RemoteLoad()
    with pytest.raises(BadStatus):
        await dialect.look(asking({"/get_load": BadStatus(503, "")}))


async def test_one_that_does_not_tokenize_is_not_compared(checkpoint: Checkpoint) -> None:
    dialect = await joined(checkpoint)
    assert await dialect.tokenize(asking({}), "text") is None
    assert await dialect.tokenize(asking({"/tokenize": {"tokens": [1, 2]}}), "text") == [1, 2]


@pytest.mark.parametrize("is_incremental", [False, True])
async def test_new_ids_are_told_from_all_ids_by_their_count(
    checkpoint: Checkpoint, is_incremental: bool
) -> None:
    reader = (await joined(checkpoint)).reader(request())
    whole = [[5], [5, 6, 7], [5, 6, 7, 8]]
    sent = [[5], [6, 7], [8]] if is_incremental else whole
    steps = [reader.read(event(ids, len(so_far))) for ids, so_far in zip(sent, whole, strict=True)]
    assert [step.token_ids for step in steps if step] == [[5], [6, 7], [8]]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ({"type": "stop", "matched": 2}, "stop"),
        ({"type": "length", "length": 1}, "length"),
        ({"type": "abort", "message": ""}, "abort"),
    ],
)
async def test_the_end_has_its_reason(checkpoint: Checkpoint, reason: Any, expected: str) -> None:
    reader = (await joined(checkpoint)).reader(request())
    step = reader.read(event([5], 1, reason, cached_tokens=9))
    assert step is not None
    assert (step.finish_reason, step.num_cached_tokens, step.num_prompt_tokens) == (expected, 9, 14)


@pytest.mark.parametrize(
    "wrong",
    [
        b"{",
        b'{"output_ids":[1]}',
        b'{"output_ids":"x","meta_info":{}}',
        event([5], 4),
        event([5], 1, {"type": "weather"}),
        event([5], 1, "stop"),
    ],
)
async def test_what_is_no_event_is_broken(checkpoint: Checkpoint, wrong: bytes) -> None:
    reader = (await joined(checkpoint)).reader(request())
    with pytest.raises(Broken):
        reader.read(wrong)


async def test_an_error_in_the_stream_is_told(checkpoint: Checkpoint) -> None:
    reader = (await joined(checkpoint)).reader(request())
    step = reader.read(b'{"error":{"message":"out of memory"}}')
    assert step is not None and step.error == "out of memory"
    aborted = reader.read(event([], 0, {"type": "abort", "message": "queue is full"}))
    assert aborted is not None and aborted.error == "queue is full"


async def test_logprobs_are_those_of_the_new_tokens(checkpoint: Checkpoint) -> None:
    reader = (await joined(checkpoint)).reader(request(logprobs=2))
    own = [[-0.5, 5, None], [-0.25, 6, None]]
    best = [[[-0.5, 5, None], [-2.0, 9, None]], [[-0.1, 7, None], [-0.2, 8, None]]]
    first = reader.read(event([5], 1, output_token_logprobs=own[:1], output_top_logprobs=best[:1]))
    second = reader.read(event([5, 6], 2, output_token_logprobs=own, output_top_logprobs=best))
    assert first is not None and first.logprobs == [[(5, -0.5, 1), (9, -2.0, 2)]]
    assert second is not None
    assert second.logprobs == [[(6, -0.25, 3), (7, -0.1, 1), (8, -0.2, 2)]]


async def test_a_request_says_all_that_decides_on_its_tokens(checkpoint: Checkpoint) -> None:
    dialect = await joined(checkpoint)
    add = request(
        temperature=0.5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        logit_bias={3: -1.0},
        min_tokens=4,
    )
    body: Any = dialect.call(add, "name").body
    assert (body["input_ids"], body["rid"], body["stream"]) == (PROMPT, "name", True)
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["min_new_tokens"]) == (20, 4)
    assert (sampling["top_k"], sampling["logit_bias"], sampling["sampling_seed"]) == (
        -1,
        {"3": -1.0},
        5,
    )


async def test_what_goes_on_asks_for_the_rest_alone(checkpoint: Checkpoint) -> None:
    dialect = await joined(checkpoint)
    add = AddRequest("r", PROMPT, asked(20, min_tokens=4), 0.0, resume_token_ids=[7, 8, 9])
    body: Any = dialect.call(add, "name").body
    assert body["input_ids"] == [*PROMPT, 7, 8, 9]
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["min_new_tokens"]) == (17, 1)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"json": {"type": "object"}}, {"json_schema": '{"type": "object"}'}),
        ({"regex": "[a-z]+"}, {"regex": "[a-z]+"}),
        ({"grammar": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
    ],
)
async def test_a_form_has_its_word(
    checkpoint: Checkpoint, form: dict[str, Any], expected: dict[str, str]
) -> None:
    dialect = await joined(checkpoint)
    body: Any = dialect.call(request(structured_outputs=Form(**form)), "name").body
    assert expected.items() <= body["sampling_params"].items()


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"structured_outputs": Form(choice=["a"])}, "structured_outputs"),
        (
            {"structured_outputs": Form(grammar='start: "a"')},
            "structured_outputs",
        ),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"allowed_token_ids": [3]}, "allowed_token_ids"),
        ({"thinking_token_budget": 3}, "thinking_token_budget"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(
    checkpoint: Checkpoint, given: dict[str, Any], parameter: str
) -> None:
    dialect = await joined(checkpoint)
    with pytest.raises(ValidationError, match="engines of the kind sglang") as refused:
        dialect.call(request(**given), "name")
    assert refused.value.parameter == parameter
