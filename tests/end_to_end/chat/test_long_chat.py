"""A chat that outgrows the model's context goes on, with its oldest turns left out."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import build_tiny_model

CONTEXT = 256
MAX_OUTPUT = 32


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that reads its history, and little room for it."""
    folder = tmp_path_factory.mktemp("small")
    model = build_tiny_model(folder / "model", "llama")
    server = Server(folder / "data", model, PARLEY_MAX_MODEL_LEN=str(CONTEXT))
    try:
        yield server.start()
    finally:
        server.close()


async def test_the_oldest_turns_are_left_out_for_several_turns_at_once(small: Server) -> None:
    async with Client(small) as client:
        session = await client.new_session()
        omitted = []
        for turn in range(14):
            settings = {"max_output_tokens": MAX_OUTPUT, "seed": turn, "system": "Be kind."}
            response = await client.ask(
                session, f"Question {turn}: " + "why? " * 5, settings=settings
            )
            answer = await client.done(response)
            started = next(f for f in answer.frames if f["type"] == "response.in_progress")
            omitted.append(started["omitted_messages"])
            assert started["prompt_tokens"] + MAX_OUTPUT <= CONTEXT
        assert omitted[0] == 0
        assert omitted == sorted(omitted)
        assert omitted[-1] > 0
        assert any(a == b > 0 for a, b in pairwise(omitted))


async def test_only_a_message_that_does_not_fit_alone_is_refused(small: Server) -> None:
    async with Client(small) as client:
        session = await client.new_session()
        frame = await client.reply(
            "response.create", session_id=session, idempotency_key="big", input="why? " * 400
        )
        assert frame["error"]["code"] == "context_length_exceeded"
        assert str(CONTEXT) in frame["error"]["message"]
    assert small.get_json(f"/v1/sessions/{session}/messages")["messages"] == []
