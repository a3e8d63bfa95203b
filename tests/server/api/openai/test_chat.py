"""`POST /v1/chat/completions` at whole workers: what it answers, what ends it, how it counts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from server.api.openai.chat import param_of
from server.api.openai.chat_request import ChatRequest
from server.api.openai.refusals import refuse
from server.protocol.errors import ApiError
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.quotas import Budget
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import running_worker
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine
from tests.server.helpers.scripted_engine import Request as Asked

ROUTE = "/v1/chat/completions"


class House:
    """One worker, its engine, and who asks there."""

    def __init__(self, worker: Worker, engine: ScriptedEngine) -> None:
        self.worker, self.engine = worker, engine

    def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> Http:
        body = {
            "model": "oracle",
            "messages": [{"role": "user", "content": oracle_word(1)}],
            "max_tokens": 4,
        }
        return Http(self.worker, "POST", ROUTE, body=body | fields, headers=headers)

    async def asked(self) -> Asked:
        """The one request at the engine, when it has come."""
        async with asyncio.timeout(PATIENCE):
            await self.engine.was_asked.wait()
        (request,) = self.engine.requests.values()
        return request

    async def keys(self) -> set[bytes]:
        pattern = self.worker.store.keys.session("*", "*")
        return set(await self.worker.store.client.call("KEYS", pattern))


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    dice = Dice(11)
    engine = ScriptedEngine(dice)
    async with running_worker(redis_server.url, fresh_prefix(), engine, dice, "w0") as worker:
        yield House(worker, engine)


def text_of(http: Http) -> str:
    deltas = [frame["choices"][0]["delta"] for frame in http.frames if frame.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_a_stream_has_the_words_of_the_answer_and_says_when_it_is_done(house: House) -> None:
    http = house.ask(stream=True, stream_options={"include_usage": True})
    await asyncio.wait_for(http.answered, PATIENCE)
    assert http.status == 200 and http.headers[b"content-type"].startswith(b"text/event-stream")
    assert text_of(http) == oracle_answer(1, 4) and http.is_done
    assert http.frames[-2]["choices"][0]["finish_reason"] == "length"
    assert http.frames[-1]["usage"]["completion_tokens"] == 4


async def test_each_chunk_has_the_usage_so_far_for_who_asks_for_it(house: House) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    http = house.ask(stream=True, stream_options=options)
    await asyncio.wait_for(http.answered, PATIENCE)
    counts = [frame["usage"]["completion_tokens"] for frame in http.frames]
    texts = [choice["delta"].get("content") for f in http.frames for choice in f["choices"]]
    assert counts == sorted(counts) and counts[0] <= 1 and counts[-1] == 4
    said = [count for count, text in zip(counts, texts, strict=False) if text]
    assert said == [*range(1, 5)]


async def test_an_answer_that_is_not_streamed_has_the_same_words(house: House) -> None:
    answer = await house.ask().body()
    assert answer["choices"][0]["message"]["content"] == oracle_answer(1, 4)
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 4,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_an_answer_goes_on_after_what_its_last_message_says(house: House) -> None:
    said = [
        {"role": "user", "content": oracle_word(1)},
        {"role": "assistant", "content": oracle_answer(1, 2)},
    ]
    answer = await house.ask(messages=said, continue_final_message=True, max_tokens=2).body()
    assert answer["choices"][0]["message"]["content"] == oracle_answer(3, 2)


async def test_calls_of_one_conversation_are_the_engines_as_one(house: House) -> None:
    """Whichever way the client has to name it; and nobody else's are among them."""
    await house.ask(prompt_cache_key="holidays").body()
    for header in ("X-OpenWebUI-Chat-Id", "X-Conversation-Id"):
        await house.ask(headers={header.lower(): "holidays"}).body()
    await house.ask(prompt_cache_key="work").body()
    await house.ask().body()
    first, *same, other, none = house.engine.sessions
    assert first is not None and same == [first, first] and none is None
    assert first.endswith("/holidays") and first != "/holidays"
    assert other == first.replace("holidays", "work")


async def test_nothing_of_it_is_stored(house: House) -> None:
    await house.ask().body()
    assert await house.keys() == set()


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_ends_the_generation(house: House, is_streamed: bool) -> None:
    http = house.ask(stream=is_streamed, max_tokens=50)
    request = await house.asked()
    async with asyncio.timeout(PATIENCE):
        request.is_held.add("mid")
        await request.reached["mid"].wait()
        http.leave()
        await http.answered
        await request.aborted.wait()
    assert house.worker.services.stateless.entry.slots() == []


async def test_it_counts_among_the_answers_of_its_user(house: House) -> None:
    http = house.ask(stream=True)
    request = await house.asked()
    async with asyncio.timeout(PATIENCE):
        request.is_held.add("mid")
        await request.reached["mid"].wait()
        ((uid, answer_id),) = house.worker.services.stateless.entry.slots()
        assert uid == "local" and answer_id.startswith("resp_")
        request.released.set()
        await http.answered
    assert house.worker.services.stateless.entry.slots() == []


class SlowLimit:
    """A limit whose store counts an answer, and does not say so."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.counted: set[str] = set()

    async def take(self, uid: str, response_id: str) -> None:
        self.counted.add(response_id)
        self.taken.set()
        await asyncio.Event().wait()

    def free(self, uid: str, response_id: str) -> None:
        self.counted.remove(response_id)


async def test_a_client_that_leaves_while_it_is_counted_counts_no_more(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = SlowLimit()
    monkeypatch.setattr(house.worker.services.stateless.entry, "_limit", limit)
    http = house.ask()
    async with asyncio.timeout(PATIENCE):
        await limit.taken.wait()
        http.leave()
        await http.answered
    assert limit.counted == set()


async def test_several_answers_share_what_is_left_of_the_day(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def left(_: str) -> Budget:
        return Budget(limit=100, used=91, reset_ms=1)

    monkeypatch.setattr(house.worker.store.budgets, "check", left)
    said = await house.ask(n=4, max_tokens=50).body()
    assert said["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 8,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_worker_that_leaves_says_so_in_the_stream(house: House) -> None:
    http = house.ask(stream=True, max_tokens=50)
    request = await house.asked()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await http.num_frames(2)
        hurry = asyncio.Event()
        hurry.set()
        await house.worker.drain(PATIENCE, hurry, is_crash=False)
        await http.answered
    assert http.frames[-1]["error"]["message"] == "the server is restarting"
    assert not http.is_done
    refused = await house.ask().body()
    assert refused["error"]["code"] == "draining"


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "nobody"}, 404, "model_not_found", "model"),
        ({"functions": []}, 400, "invalid_field", "functions"),
        ({"nonsense": 1}, 400, "invalid_field", "nonsense"),
        ({"logit_bias": {"-1": 1}}, 400, "invalid_field", "logit_bias"),
        ({"response_format": {"type": "json_schema"}}, 400, "invalid_field", None),
        ({"tool_choice": "required"}, 400, "invalid_field", "tool_choice"),
    ],
)
async def test_what_cannot_be_answered_is_refused(
    house: House, fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    http = house.ask(**fields)
    error = (await http.body())["error"]
    assert (http.status, error["code"]) == (status, code)
    assert param is None or error["param"] == param
    assert house.engine.num_requests == 0


async def test_a_prompt_that_fills_the_context_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.engine.model_config, "max_model_len", 1)
    error = (await house.ask().body())["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_refusals_tell_clients_whether_to_ask_again(house: House) -> None:
    house.worker.runs.draining = True
    http = house.ask()
    await http.body()
    assert http.status == 503 and http.headers[b"retry-after-ms"] == b"1000"
    assert b"x-should-retry" not in http.headers


async def test_tokens_of_the_day_are_in_the_headers_where_they_are_counted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncounted = house.ask()
    await uncounted.body()

    async def left(_: str) -> Budget:
        return Budget(limit=100, used=30, reset_ms=90_000)

    monkeypatch.setattr(house.worker.store.budgets, "check", left)
    calls = [house.ask(), house.ask(stream=True)]
    for http in calls:
        await asyncio.wait_for(http.answered, PATIENCE)
        told = {name: value for name, value in http.headers.items() if b"-tokens" in name}
        assert told == {
            b"x-ratelimit-limit-tokens": b"100",
            b"x-ratelimit-remaining-tokens": b"70",
            b"x-ratelimit-reset-tokens": b"1m30s",
        }
    assert not any(b"ratelimit" in name for name in uncounted.headers)


@pytest.mark.parametrize(
    ("code", "tells_no"),
    [("response_in_progress", True), ("quota_exceeded", True), ("rate_limited", False)],
)
async def test_what_a_retry_cannot_mend_says_so(code: str, tells_no: bool) -> None:
    answer = refuse(Request({"type": "http"}), ApiError(code, "no", retry_after_ms=1500))
    assert answer.headers["retry-after-ms"] == "1500" and answer.headers["retry-after"] == "2"
    assert answer.headers.get("x-should-retry") == ("false" if tells_no else None)


@pytest.mark.parametrize(
    ("choice", "param"),
    [(None, "response_format"), ("none", "response_format"), ("required", "tools")],
)
def test_what_an_answer_cannot_be_held_to_is_named(choice: Any, param: str) -> None:
    asked = ChatRequest(model="m", messages=[], tool_choice=choice)
    assert param_of("structured_outputs", asked) == param
    assert param_of("seed", asked) == "seed"
