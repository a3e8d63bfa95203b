"""Many schemas, each answered undisturbed and once more with a death in between: the same text.

A tiny model of random weights walks the documents that a schema allows, at a high temperature. The
death is of the core, after which another engine goes on with the tokens so far, or of the process
that makes masks. The suites of deaths through sockets are in end_to_end/engine.
"""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.core.structured.grammars import MAX_LOSSES
from tests.engine.core.structured.conftest import Walker
from tests.engine.core.structured.test_deaths import masker_of
from tests.engine.helpers.forms.schemas import draw_whole, fits

BATCH = 25
SHARE = 0.9  # of the answers that must come to an end within their tokens
MAX_TOKENS = 440


def ask(walker: Walker, schemas: list[dict[str, Any]], first: int, **params: Any) -> list[str]:
    names = []
    for number, schema in enumerate(schemas, first):
        name = walker.name("schema")
        form = {"json": schema, "disable_any_whitespace": True}
        resumed = params.get("resumed", {}).get(number, [])
        walker.add(
            name, form, seed=number, max_tokens=MAX_TOKENS, resume_token_ids=resumed, min_tokens=0
        )
        names.append(name)
    return names


def check(folder: Path, num_schemas: int, seed: int) -> None:
    rng = random.Random(seed)
    schemas = [draw_whole(rng) for _ in range(num_schemas)]
    ended = 0
    undisturbed, disturbed = (Walker(folder, num_blocks=400) for _ in range(2))
    try:
        for first in range(0, num_schemas, BATCH):
            part = schemas[first : first + BATCH]
            names = ask(undisturbed, part, first)
            undisturbed.engine.run()
            expected = [undisturbed.engine.tokens[name] for name in names]
            for name, schema in zip(names, part, strict=True):
                if undisturbed.engine.ends[name].finish_reason == "stop":
                    ended += 1
                    assert fits(json.loads(undisturbed.text(name)), schema)
            # The core has died after some tokens of each; later its masker dies, too.
            cuts = {
                number: tokens[: rng.randrange(max(1, len(tokens)))]
                for number, tokens in enumerate(expected, first)
            }
            again = ask(disturbed, part, first, resumed=cuts)
            disturbed.engine.wait_for_grammars()
            for _ in range(MAX_LOSSES - 1):
                for _ in range(rng.randrange(1, 12)):
                    disturbed.engine.step()
                if any(it.is_running for it in disturbed.engine.scheduler.sequences.values()):
                    os.kill(masker_of(disturbed), signal.SIGKILL)
                    disturbed.engine.step()
                    disturbed.engine.wait_for_grammars()
            disturbed.engine.run()
            tokens = [
                cuts[number] + disturbed.engine.tokens.get(name, [])
                for number, name in enumerate(again, first)
            ]
            assert tokens == expected
    finally:
        undisturbed.engine.close()
        disturbed.engine.close()
    assert ended >= SHARE * num_schemas


def test_answers_to_seeded_schemas_are_valid_and_survive_deaths(folder: Path) -> None:
    check(folder, 2 * BATCH, seed=1)


@pytest.mark.slow
def test_answers_to_500_seeded_schemas_are_valid_and_survive_deaths(folder: Path) -> None:
    check(folder, 500, seed=2)
