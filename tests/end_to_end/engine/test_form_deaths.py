"""Answers to many schemas through `parley serve`, whose core or owner is killed in the middle."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.walking_model import build_walking_model
from tests.end_to_end.site.harness import TESTING, Answer, Client, Server
from tests.end_to_end.site.owned_answer import owner_and_other
from tests.end_to_end.site.recovery import ask_when_it_may
from tests.engine.helpers.forms.asked import Asked, drawn, of_suite
from tests.engine.helpers.forms.published import Unavailable

FEW, MANY = 12, 32  # answers at a time
HOT: Frame = {"temperature": 1.0, "top_p": 1.0, "max_output_tokens": 400}
NUM_SCHEMAS = 500
NUM_SEEDED = 150  # beside the suite's
MIN_SHARE = 0.9  # of the answers that come to an end
MIN_DISTURBED = 0.25  # of them those that were not over yet


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("forms")
    environment = {**TESTING, "PARLEY_WORKERS": "2", "PARLEY_PACE": "60"}
    model = build_walking_model(folder / "model")
    server = Server(folder / "data", model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


def settings(schema: dict[str, Any], seed: int) -> Frame:
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    return {**HOT, "seed": seed, "output": {"type": "json_schema", "schema": compact}}


async def ask_all(owner: Client, other: Client, asked: list[Frame]) -> list[str]:
    """Each in a session of its own, at the owner; the other one watches."""
    responses = []
    for each in asked:
        session = await owner.new_session()
        await other.reply("session.subscribe", session_id=session)
        responses.append(await ask_when_it_may(owner, session, "Who?", each))
    return responses


async def moment(client: Client, response: str, num_deltas: int) -> None:
    """Until an answer has come so far, or is over."""

    def is_there() -> bool:
        answer = client.answers.get(response)
        return answer is not None and (answer.num_deltas >= num_deltas or answer.done is not None)

    await client.wait(is_there)


def end_of(answer: Answer) -> tuple[str, str, str]:
    """Its text, why it has ended, and what is said of that."""
    assert answer.done is not None
    details = answer.done["response"]["status_details"]
    return answer.final, details["reason"], details.get("message", "")


async def check(server: Server, asked: list[Asked], rng: random.Random, batch: int) -> Counter[str]:
    """Each is answered undisturbed, and again with a kill. Raises AssertionError."""
    counts: Counter[str] = Counter()
    for number, first in enumerate(range(0, len(asked), batch)):
        part = asked[first : first + batch]
        wanted = [settings(each.schema, rng.randrange(1 << 31)) for each in part]
        victim = ("core", "owner")[number % 2]
        async with owner_and_other(server) as (owner, other, pid):
            await owner.new_session()  # who says nothing at first is cut off
            calm = [await other.done(it) for it in await ask_all(other, other, wanted)]
            responses = await ask_all(owner, other, wanted)
            await moment(other, rng.choice(responses), rng.randrange(1, 20))
            if victim == "core":
                server.kill_child("engine.core")
            else:
                server.history.fault("kill -9 of the owner")
                os.kill(pid, signal.SIGKILL)
            answers = [await other.done(response) for response in responses]
        for each, expected, answer in zip(part, calm, answers, strict=True):
            assert end_of(answer) == end_of(expected), (each, victim)
            _, reason, _ = end_of(expected)
            counts[reason] += 1
            assert answer.done is not None
            counts[f"disturbed by {victim}"] += "restarts" in answer.done["response"]
            assert reason != "eos" or each.is_as_it_says(json.loads(answer.final)), each
    return counts


@pytest.mark.slow
async def test_answers_in_forms_survive_a_kill_of_core_or_owner_with_the_same_text(
    server: Server,
) -> None:
    rng = random.Random(8)
    counts = await check(server, [drawn(rng) for _ in range(2 * FEW)], rng, FEW)
    assert counts["eos"] >= MIN_SHARE * 2 * FEW
    assert counts["disturbed by core"] and counts["disturbed by owner"]


@pytest.mark.slow
async def test_500_answers_in_forms_survive_kills_with_the_same_text(server: Server) -> None:
    """To the official suite's schemas, as far as they are taken, and to seeded ones."""
    seed = int(os.environ.get("FORMS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"FORMS_SEED={seed}")
    rng = random.Random(seed)
    try:
        asked = list(of_suite())
    except Unavailable as error:
        print(error)
        asked = []
    asked += [drawn(rng) for _ in range(NUM_SEEDED if asked else NUM_SCHEMAS)]
    rng.shuffle(asked)
    counts = await check(server, asked, rng, MANY)
    num_taken = counts["eos"] + counts["max_output_tokens"]
    print(f"of {len(asked)} schemas {num_taken} are taken: {dict(counts)}")
    assert num_taken + counts["output_format_refused"] == len(asked)
    assert counts["eos"] >= MIN_SHARE * num_taken >= MIN_SHARE * NUM_SCHEMAS
    for victim in ("core", "owner"):
        assert counts[f"disturbed by {victim}"] >= MIN_DISTURBED * num_taken / 2
