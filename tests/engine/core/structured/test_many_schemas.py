"""Many schemas, each answered undisturbed and once more with a death in between: the same text.

The model is a scripted one (`forms/scripted.py`). It is asked for a document of each schema, and
then given that document, or one of the official suite's, with something wrong in it, to write
again. The death is of the core, after which another engine goes on with the tokens so far, or of
the process that makes masks. Deaths of whole processes are in end_to_end/engine.
"""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.core.structured.grammars import MAX_LOSSES, REFUSED
from tests.engine.core.structured.conftest import Walker
from tests.engine.core.structured.test_deaths import masker_of
from tests.engine.helpers.forms.asked import Asked, drawn, of_store, of_suite
from tests.engine.helpers.forms.published import Unavailable
from tests.engine.helpers.forms.scripted import nearly

BATCH = 25
SHARE = 0.9  # of the answers that must come to an end within their tokens
MAX_TOKENS = 440
SCRIPTED = ["tests.engine.helpers.forms.scripted:Scripted"]
NUM_SCHEMAS = 500
MIN_SEEDED = 150


class Disturbed:
    """An engine that is never disturbed, and one whose processes die."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.num_taken = 0
        self.ends: Counter[str] = Counter()  # by the origin of the schema
        settings: dict[str, Any] = {"num_blocks": 400, "logits_processors": SCRIPTED}
        self._calm, self._mortal = (Walker(folder, **settings) for _ in range(2))

    def close(self) -> None:
        self._calm.engine.close()
        self._mortal.engine.close()

    def answer(self, asked: list[Asked]) -> None:
        """What is taken of these schemas, twice each. Raises AssertionError."""
        for first in range(0, len(asked), BATCH):
            part = asked[first : first + BATCH]
            names = self._ask(self._calm, part, first, [""] * len(part))
            self._calm.engine.run()
            scripts = [self._script(it, name) for it, name in zip(part, names, strict=True)]
            is_taken = [self._is_taken(name) for name in names]
            part = [it for it, taken in zip(part, is_taken, strict=True) if taken]
            scripts = [it for it, taken in zip(scripts, is_taken, strict=True) if taken]
            self.num_taken += len(part)
            names = self._ask(self._calm, part, first, scripts)
            self._calm.engine.run()
            expected = [self._calm.engine.tokens[name] for name in names]
            for name, each in zip(names, part, strict=True):
                self._check(name, each)
            assert self._with_deaths(part, first, scripts, expected) == expected

    def _with_deaths(
        self, part: list[Asked], first: int, scripts: list[str], expected: list[list[int]]
    ) -> list[list[int]]:
        # The core has died after some tokens of each; later its masker dies, too.
        rng, engine = self.rng, self._mortal.engine
        cuts = [tokens[: rng.randrange(max(1, len(tokens)))] for tokens in expected]
        names = self._ask(self._mortal, part, first, scripts, cuts)
        engine.wait_for_grammars()
        for _ in range(MAX_LOSSES - 1):
            for _ in range(rng.randrange(1, 12)):
                engine.step()
            if any(it.is_running for it in engine.scheduler.sequences.values()):
                os.kill(masker_of(self._mortal), signal.SIGKILL)
                engine.step()
                engine.wait_for_grammars()
        engine.run()
        return [cut + engine.tokens.get(name, []) for cut, name in zip(cuts, names, strict=True)]

    def _ask(
        self,
        walker: Walker,
        asked: list[Asked],
        first: int,
        scripts: list[str],
        cuts: list[list[int]] | None = None,
    ) -> list[str]:
        names = [walker.name("schema") for _ in asked]
        for place, (name, each) in enumerate(zip(names, asked, strict=True)):
            walker.add(
                name,
                each.form,
                seed=first + place,
                max_tokens=MAX_TOKENS,
                resume_token_ids=cuts[place] if cuts else [],
                min_tokens=0,
                extra_args={"script": walker.tokenizer.encode(scripts[place]).ids},
            )
        return names

    def _script(self, asked: Asked, name: str) -> str:
        return nearly(self.rng, self.rng.choice([self._calm.text(name), *asked.documents]))

    def _is_taken(self, name: str) -> bool:
        error = self._calm.engine.ends[name].error
        assert error is None or error[0] == REFUSED
        return error is None

    def _check(self, name: str, asked: Asked) -> None:
        if self._calm.engine.ends[name].finish_reason == "stop":
            text = self._calm.text(name)
            assert asked.is_as_it_says(json.loads(text)), (asked.schema, text)
            self.ends[asked.origin] += 1


@pytest.fixture
def disturbed(folder: Path) -> Iterator[Disturbed]:
    disturbed = Disturbed(folder, seed=1)
    yield disturbed
    disturbed.close()


def test_answers_to_seeded_schemas_are_valid_and_survive_deaths(disturbed: Disturbed) -> None:
    asked = [drawn(disturbed.rng) for _ in range(2 * BATCH)]
    disturbed.answer(asked)
    assert disturbed.ends["seeded"] >= SHARE * len(asked)


@pytest.mark.slow
def test_answers_to_500_schemas_are_valid_and_survive_deaths(disturbed: Disturbed) -> None:
    """Those of others that are taken, and seeded ones, so many that there are 500 in any case."""
    try:
        asked = [*of_suite(), *of_store()]
    except Unavailable as error:
        print(error)
        asked = []
    disturbed.answer(asked)
    num_seeded = max(MIN_SEEDED, NUM_SCHEMAS - disturbed.num_taken)
    disturbed.answer([drawn(disturbed.rng) for _ in range(num_seeded)])
    print(f"of {disturbed.num_taken} schemas {dict(disturbed.ends)} came to an end")
    assert disturbed.ends.total() >= SHARE * disturbed.num_taken >= SHARE * NUM_SCHEMAS
