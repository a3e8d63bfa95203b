"""llama.cpp's wire format, as the real server speaks it (`recorded/llamacpp.json`)."""

import re
from typing import Any

import orjson
import pytest

from engine.errors import ValidationError
from engine.grammar.params import StructuredOutputsParams as Form
from engine.ipc import AddRequest
from engine.lora import LoRARequest
from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams
from server.engines.client import CANNOT_CONTINUE
from server.engines.remote.checkpoint import Checkpoint
from server.engines.remote.dialects.dialect import RemoteLoad, Step
from server.engines.remote.dialects.llamacpp import LlamaCpp, missing_ids
from server.engines.remote.wire.exchange import Call, message_of
from server.engines.remote.wire.problems import BadStatus, Broken, Misfit, Silent
from tests.server.engines.remote.conftest import PROMPT, Join, asked
from tests.server.engines.remote.recorded.exchanges import recorded
from tests.server.engines.remote.stand_in import LlamaCppStandIn, answer_ids

RECORDED = recorded("llamacpp")


def request(**more: Any) -> AddRequest:
    params = SamplingParams(**{"max_tokens": 20, "temperature": 0, "seed": 5, **more})
    return AddRequest("r", PROMPT, params, 0.0)


async def dialect_of(checkpoint: Checkpoint, replies: dict[str, Any] | None = None) -> LlamaCpp:
    """One that has joined the recorded server, some of whose replies may be others."""
    dialect = LlamaCpp(checkpoint.tokenizer, None)
    await dialect.probe(asking(replies or {}))
    return dialect


def asking(replies: dict[str, Any]) -> Any:
    names = {"/props": "props", "/slots": "slots", "/health": "health", "/tokenize": "tokenize"}

    async def ask(call: Call) -> Any:
        reply = replies.get(call.path)
        if isinstance(reply, Exception):
            raise reply
        return orjson.loads(RECORDED[names[call.path]].body) if reply is None else reply

    return ask


def steps_of(dialect: LlamaCpp, name: str, params: SamplingParams | None = None) -> list[Step]:
    """What is read of a recorded stream."""
    add = AddRequest("r", PROMPT, params or asked(), 0.0)
    reader = dialect.reader(add)
    return [step for event in RECORDED[name].events if (step := reader.read(event))]


async def test_what_the_server_is_the_probe_finds(checkpoint: Checkpoint) -> None:
    facts = await LlamaCpp(checkpoint.tokenizer, None).probe(asking({}))
    slots = orjson.loads(RECORDED["slots"].body)
    assert facts.max_model_len == slots[0]["n_ctx"] == 8192
    assert facts.max_num_seqs == len(slots)


@pytest.mark.parametrize(
    "reply", [BadStatus(404, ""), {"model": "m"}, [], "ok", {"default_generation_settings": {}}]
)
async def test_what_is_no_such_server_is_refused_in_one_line(
    checkpoint: Checkpoint, reply: Any
) -> None:
    with pytest.raises(Misfit, match=r"it is no llama\.cpp server"):
        await dialect_of(checkpoint, {"/props": reply})


async def test_a_server_without_slots_is_looked_at_by_its_health(checkpoint: Checkpoint) -> None:
    replies = {"/slots": BadStatus(501, "not supported")}
    dialect = await dialect_of(checkpoint, replies)
    assert (await dialect.look(asking(replies))).num_running is None


async def test_a_server_whose_slots_wait_for_a_long_batch_lives(checkpoint: Checkpoint) -> None:
    replies: dict[str, Any] = {"/slots": Silent("nothing for 5 s")}
    dialect = await dialect_of(checkpoint, replies)
    assert await dialect.look(asking(replies)) == RemoteLoad()
    with pytest.raises(Silent):
        await dialect.look(asking({**replies, "/health": Silent("nothing for 5 s")}))
    assert (await dialect.look(asking({}))).num_running is not None  # it is asked again


async def test_busy_slots_are_its_load(checkpoint: Checkpoint) -> None:
    dialect = await dialect_of(checkpoint)
    slots = [
        {"id": 0, "is_processing": True, "n_prompt_tokens": 4096},
        {"id": 1, "is_processing": False, "n_prompt_tokens": 512},
    ]
    load = await dialect.look(asking({"/slots": slots}))
    number = len(orjson.loads(RECORDED["slots"].body))
    assert (load.num_running, load.kv_usage) == (1, 4096 / (8192 * number))


async def test_its_tokenizer_is_that_of_the_folder(checkpoint: Checkpoint) -> None:
    dialect = await dialect_of(checkpoint)
    exchange = RECORDED["tokenize"]
    text = orjson.loads(exchange.asked)["content"]
    theirs = await dialect.tokenize(asking({}), text)
    assert theirs == checkpoint.tokenizer.encode(text, add_special_tokens=False)


async def test_a_recorded_answer_has_its_tokens_and_its_end(checkpoint: Checkpoint) -> None:
    dialect = await dialect_of(checkpoint)
    steps = steps_of(dialect, "end")
    ids = [token_id for step in steps for token_id in step.token_ids]
    says = [orjson.loads(event) for event in RECORDED["end"].events]
    assert len(ids) == says[-1]["tokens_predicted"] and ids[-1] == 2
    assert steps[-1].finish_reason == "stop"
    assert checkpoint.tokenizer.decode(ids[:-1]) == "".join(each["content"] for each in says)
    assert {step.num_prompt_tokens for step in steps} == {len(PROMPT)}


async def test_a_recorded_answer_that_is_cut_ends_by_its_length(checkpoint: Checkpoint) -> None:
    steps = steps_of(await dialect_of(checkpoint), "length")
    assert [step.token_ids for step in steps] == [[1674], [569], [642], [310], []]
    assert [step.finish_reason for step in steps] == [None] * 4 + ["length"]


async def test_the_progress_of_a_prompt_names_no_token(checkpoint: Checkpoint) -> None:
    steps = steps_of(await dialect_of(checkpoint), "progress")
    assert [step.num_computed_tokens for step in steps[:2]] == [699, 700]
    assert [step.token_ids for step in steps[:3]] == [[], [], [1674]]
    assert steps[0].num_cached_tokens == 699


async def test_logprobs_are_those_that_it_says(checkpoint: Checkpoint) -> None:
    steps = steps_of(await dialect_of(checkpoint), "logprobs", SamplingParams(logprobs=2))
    first = steps[0].logprobs
    assert first is not None and [(i, rank) for i, _, rank in first[0]] == [(1674, 1), (580, 2)]
    assert first[0][0][1] == pytest.approx(-0.017342, abs=1e-5)


def event(number: int, ids: list[int], content: str = "x") -> bytes:
    return orjson.dumps(
        {
            "content": content,
            "tokens": ids,
            "stop": False,
            "tokens_predicted": number,
            "tokens_evaluated": len(PROMPT),
        }
    )


async def test_a_token_that_the_stream_leaves_out_is_known_by_its_bytes(
    checkpoint: Checkpoint,
) -> None:
    tokenizer = checkpoint.tokenizer
    snowman = tokenizer.encode("☃", add_special_tokens=False)
    assert len(snowman) == 3  # in this vocabulary each of its bytes is a token
    reader = (await dialect_of(checkpoint)).reader(request())
    step = reader.read(event(3, snowman[-1:], "☃"))
    assert step is not None and (step.token_ids, step.finish_reason) == (snowman, None)


@pytest.mark.parametrize("content", ["�", "y", "", "☃☃"])
async def test_tokens_that_are_not_certain_are_asked_for_again(
    checkpoint: Checkpoint, content: str
) -> None:
    dialect = await dialect_of(checkpoint)
    reader = dialect.reader(request())
    assert reader.read(event(1, [1674])) is not None
    step = reader.read(event(4, [228], content))
    assert step is not None and (step.token_ids, step.finish_reason) == ([], "gap")
    call = dialect.piece(request(), "name", 8)
    assert call is not None and call.body is not None
    assert (call.body["stream"], call.body["n_predict"]) == (False, 8)


class Hiding(LlamaCppStandIn):
    """It says nothing of every third token of an answer."""

    async def _events(self, body: dict[str, Any], fault: str) -> Any:
        async for event in super()._events(body, fault):
            says = orjson.loads(event.removeprefix(b"data: "))
            if says["stop"] or says["tokens_predicted"] % 3:
                yield event


async def test_an_answer_with_tokens_that_a_stream_leaves_out_has_them_all(join: Join) -> None:
    stand_in = Hiding()
    await stand_in.start()
    joined = await join(stand_in)
    answer = await joined.ask(params=asked(40))
    assert (answer.token_ids, answer.reason) == (answer_ids(PROMPT, 40), "length")
    assert any(not body["stream"] for body in stand_in.asked)


def test_bytes_that_two_ways_of_writing_have_are_not_certain(checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer
    (last,) = tokenizer.encode("!", add_special_tokens=False)
    assert missing_ids(tokenizer, "a!", 1, [last]) == tokenizer.encode(
        "a", add_special_tokens=False
    )
    assert missing_ids(tokenizer, "the!", 2, [last]) is None  # t+he and th+e
    assert missing_ids(tokenizer, "the!", 3, [last]) is not None  # a letter each
    assert missing_ids(tokenizer, "☃", 1, [last]) is None


def test_where_an_answer_cannot_be_asked_for_again_the_usual_way_will_do(
    checkpoint: Checkpoint,
) -> None:
    tokenizer = checkpoint.tokenizer
    (last,) = tokenizer.encode("!", add_special_tokens=False)
    found = missing_ids(tokenizer, "the!", 2, [last], is_any=True)
    assert found is not None and tokenizer.decode(found) == "the"
    usual = tokenizer.encode("people", add_special_tokens=False)
    assert missing_ids(tokenizer, "people!", len(usual), [last], is_any=True) == usual
    assert missing_ids(tokenizer, "☃", 1, [last], is_any=True) is None


async def test_an_answer_that_is_held_to_a_form_ends_where_its_tokens_are_not_known(
    join: Join,
) -> None:
    stand_in = Hiding()
    await stand_in.start()
    joined = await join(stand_in)
    answer = await joined.ask(params=asked(40, structured_outputs=Form(json={})))
    assert answer.token_ids == answer_ids(PROMPT, 2)
    assert answer.last.error is not None and answer.last.error.code == CANNOT_CONTINUE
    assert len(stand_in.asked) == 1


async def test_a_token_without_text_that_ends_the_answer_is_its_last(
    checkpoint: Checkpoint,
) -> None:
    reader = (await dialect_of(checkpoint)).reader(request())
    assert reader.read(event(1, [1674])) is not None
    assert reader.read(event(2, [1], "")) == Step(num_prompt_tokens=len(PROMPT))
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 2}
    step = reader.read(orjson.dumps(last))
    assert step is not None and (step.token_ids, step.finish_reason) == ([1], "stop")


async def test_a_token_without_text_amid_an_answer_comes_with_the_next(
    checkpoint: Checkpoint,
) -> None:
    reader = (await dialect_of(checkpoint)).reader(request())
    reader.read(event(1, [1], ""))
    step = reader.read(event(2, [1674]))
    assert step is not None and step.token_ids == [1, 1674]


@pytest.mark.parametrize(
    "wrong",
    [b"{", b"[]", b'{"tokens":["x"]}', b'{"tokens":[1.5],"tokens_predicted":1}', b'{"tokens":7}'],
)
async def test_what_is_no_event_is_broken(checkpoint: Checkpoint, wrong: bytes) -> None:
    reader = (await dialect_of(checkpoint)).reader(request())
    with pytest.raises(Broken):
        reader.read(wrong)


async def test_a_request_says_all_that_decides_on_its_tokens(checkpoint: Checkpoint) -> None:
    """So that the server's own defaults, such as a min_p of 0.05, decide nothing."""
    dialect = await dialect_of(checkpoint)
    add = request(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, logit_bias={3: -1.0}
    )
    body = dialect.call(add, "name").body
    assert body is not None
    expected = {
        "prompt": PROMPT,
        "n_predict": 20,
        "stream": True,
        "return_tokens": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "repeat_last_n": -1,
        "seed": 5,
        "logit_bias": [[3, -1.0]],
        "ignore_eos": False,
    }
    assert expected.items() <= body.items()
    settings = orjson.loads(RECORDED["props"].body)["default_generation_settings"]
    known = {*settings["params"], "prompt", "stream", "return_tokens", "return_progress"}
    assert set(body) <= known | {"cache_prompt", "logit_bias"}


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 1), (0.7, 0)])
async def test_a_greedy_answer_has_one_token_to_draw_from(
    checkpoint: Checkpoint, temperature: float, top_k: int
) -> None:
    body = (await dialect_of(checkpoint)).call(request(temperature=temperature), "name").body
    assert body is not None and body["top_k"] == top_k


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (Form(json={"type": "array", "maxItems": 3}), {"type": "array", "maxItems": 3}),
        (Form(json='{"const": 7}'), {"const": 7}),
        (Form(json_object=True), {"type": "object"}),
    ],
)
async def test_an_answer_in_json_is_held_to_its_schema(
    checkpoint: Checkpoint, form: Form, schema: dict[str, Any]
) -> None:
    dialect = await dialect_of(checkpoint)
    body = dialect.call(request(structured_outputs=form), "name").body
    assert body is not None and body["json_schema"] == schema


async def test_an_answer_is_held_to_a_grammar_of_its_own_kind(checkpoint: Checkpoint) -> None:
    dialect = await dialect_of(checkpoint)
    form = Form(grammar='root ::= "a"+')
    body = dialect.call(request(structured_outputs=form), "name").body
    assert body is not None and body["grammar"] == 'root ::= "a"+'


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprob_token_ids": [3]}, "logprob_token_ids"),
        ({"allowed_token_ids": [3]}, "allowed_token_ids"),
        ({"bad_words_token_ids": [[3]]}, "bad_words"),
        ({"thinking_token_budget": 3}, "thinking_token_budget"),
        ({"trace_decode_token_ids": [3]}, "trace_decode_token_ids"),
        ({"structured_outputs": Form(regex="a+")}, "structured_outputs"),
        ({"structured_outputs": Form(grammar='start: "a"')}, "structured_outputs"),
        ({"structured_outputs": Form(json={}, disable_any_whitespace=True)}, "structured_outputs"),
        ({"structured_outputs": Form(json={}, begun="{")}, "structured_outputs"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(
    checkpoint: Checkpoint, given: dict[str, Any], parameter: str
) -> None:
    dialect = await dialect_of(checkpoint)
    with pytest.raises(ValidationError, match="engines of the kind llamacpp") as refused:
        dialect.call(request(**given), "name")
    assert refused.value.parameter == parameter


@pytest.mark.parametrize(
    ("more", "parameter"),
    [({"pooling": PoolingParams()}, "task"), ({"lora": LoRARequest("a", 1, "/a")}, "lora_request")],
)
async def test_what_no_such_engine_has_is_refused_by_name(
    checkpoint: Checkpoint, more: dict[str, Any], parameter: str
) -> None:
    dialect = await dialect_of(checkpoint)
    with pytest.raises(ValidationError) as refused:
        dialect.call(AddRequest("r", PROMPT, asked(), 0.0, **more), "name")
    assert refused.value.parameter == parameter


@pytest.mark.parametrize("name", ["no such token", "no such form", "too long"])
def test_recorded_refusals_say_why_in_one_line(name: str) -> None:
    exchange = RECORDED[name]
    said = message_of(exchange.status, exchange.body)
    assert exchange.status == 400 and re.fullmatch(r"[^\n{}]+", said)
