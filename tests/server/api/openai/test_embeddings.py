"""`POST /v1/embeddings`: what it takes, and what becomes of a call."""

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from engine.pooling import PoolingOutput
from server.api.openai.embeddings import EmbeddingRequest
from server.engines.client import PoolingRequestOutput
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import running_worker
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine


class Counting(ScriptedEngine):
    """The vector of a prompt is its first id and its length. `is_held`: none comes."""

    is_held = False

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice)
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        self.begun.set()
        ids = prompt["prompt_token_ids"]
        try:
            if self.is_held:
                await asyncio.Event().wait()
            vector = PoolingOutput([float(ids[0]), float(len(ids))])
            yield PoolingRequestOutput(request_id, vector, ids, 0, True)
        finally:
            self.ended.set()


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[tuple[Worker, Counting]]:
    dice = Dice(7)
    engine = Counting(dice)
    async with running_worker(redis_server.url, fresh_prefix(), engine, dice, "w0") as worker:
        yield worker, engine


def ask(worker: Worker, **fields: Any) -> Http:
    return Http(worker, "POST", "/v1/embeddings", body={"model": "oracle"} | fields)


async def test_each_text_has_its_vector_in_order(house: tuple[Worker, Counting]) -> None:
    worker, _ = house
    texts = [oracle_word(3), oracle_word(5) + oracle_word(6), oracle_word(4)]
    answer = await ask(worker, input=texts).body()
    assert [each["embedding"] for each in answer["data"]] == [[3.0, 1.0], [5.0, 2.0], [4.0, 1.0]]
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


async def test_base64_is_float32_from_the_least_byte_on(house: tuple[Worker, Counting]) -> None:
    answer = await ask(house[0], input=[8, 9], encoding_format="base64").body()
    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert struct.unpack("<2f", packed) == (8.0, 2.0)


async def test_a_client_that_leaves_ends_the_work(house: tuple[Worker, Counting]) -> None:
    worker, engine = house
    engine.is_held = True
    http = ask(worker, input="x")
    async with asyncio.timeout(PATIENCE):
        await engine.begun.wait()
        http.leave()
        await http.answered
        await engine.ended.wait()
    assert worker.services.stateless.entry.slots() == []


async def test_what_no_context_holds_is_refused_by_its_place(
    house: tuple[Worker, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, engine = house
    monkeypatch.setattr(engine.model_config, "max_model_len", 2)
    error = (await ask(worker, input=[[1], [1, 2, 3]]).body())["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2]], [[1], [2]]),
    ],
)
def test_an_input_is_a_text_or_token_ids_or_several(given: Any, texts: Any) -> None:
    request: EmbeddingRequest = to_struct({"model": "m", "input": given}, EmbeddingRequest)
    assert request.texts == texts


@pytest.mark.parametrize("given", [[], [1, "a"], ["a"] * 257, 5, None])
def test_what_is_no_input_is_refused(given: Any) -> None:
    with pytest.raises(ApiError) as refused:
        _ = to_struct({"model": "m", "input": given}, EmbeddingRequest).texts
    assert refused.value.param == "input"
