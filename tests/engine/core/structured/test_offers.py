"""Rows that offer a token before a mask is made for them choose what they would choose by it."""

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.core.structured.frames import Offers
from engine.core.structured.grammars import MAX_LOSSES, REFUSED
from engine.core.structured.masks import MAX_REFUSED, STEPS_WITHOUT_OFFER, Masks, StepMasks
from tests.engine.core.structured.conftest import Walker
from tests.engine.core.structured.test_answers import COMPACT, TAG
from tests.engine.core.structured.test_deaths import masker_of

FORMS: list[dict[str, Any]] = [
    COMPACT,
    {"structural_tag": json.dumps(TAG)},
    {"structural_tag": json.dumps(TAG)},
    {"regex": "([a-z]{2,5} ){9}"},
    {"regex": "(?s:.*)"},
    {"regex": "[ab]{2,9}"},
    {"choice": ["yes", "no", "nothing"]},
    {"grammar": 'start: ("x" /[0-9]+/)+ "y" /.*/'},
]


@pytest.fixture
def offering(folder: Path) -> Iterator[Walker]:
    walker = Walker(folder, num_blocks=6, max_num_batched_tokens=7)
    yield walker
    walker.engine.close()


@pytest.fixture
def masking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walker]:
    """One whose greedy rows have masks in any case."""
    walker = Walker(folder)
    runner = walker.engine.runner
    may_offer = runner._may_offer
    monkeypatch.setattr(
        runner, "_may_offer", lambda it: it.params.temperature > 0 and may_offer(it)
    )
    yield walker
    walker.engine.close()


def draw(rng: random.Random, end: int) -> dict[str, Any]:
    """A request whose form is one of some, and what else it asks for."""
    more: list[dict[str, Any]] = [
        {},
        {},
        {"ignore_eos": True},
        {"min_tokens": rng.randrange(9)},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"logit_bias": {end: 30.0}},
        {"logit_bias": {rng.randrange(384): 20.0}},
        {"bad_words_token_ids": [[rng.randrange(384)], [rng.randrange(384)]]},
        {"logprobs": 2},
        {"stop_token_ids": [rng.randrange(384)]},
        {"allowed_token_ids": [end, *rng.sample(range(384), 200)]},
    ]
    return {
        "form": rng.choice(FORMS),
        "max_tokens": rng.randrange(1, 50),
        "temperature": rng.choice([0.0, 0.0, 1.0]),
        "seed": rng.randrange(1000),
        "logit_bias": dict.fromkeys(rng.sample(range(384), 150), 4.0),
        **rng.choice(more),
    }


@pytest.mark.parametrize("seed", range(3))
def test_each_answer_is_the_one_that_masks_give_whatever_dies(
    offering: Walker, masking: Walker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    (end,) = offering.engine.runner.loaded.eos_token_ids
    requests = [draw(rng, end) for _ in range(24)]
    offer, counts = StepMasks.offer, {"offered": 0, "refused": 0, "deaths": 0}

    def counted(self: StepMasks, tokens: list[int]) -> Any:
        if self._masks is not offering.engine.runner.masks:
            return offer(self, tokens)
        if counts["deaths"] < MAX_LOSSES - 1 and rng.random() < 0.2:
            os.kill(masker_of(offering), signal.SIGKILL)
            counts["deaths"] += 1
        counts["offered"] += len(self._open)
        fences = offer(self, tokens)
        counts["refused"] += len(fences.masked)
        return fences

    monkeypatch.setattr(StepMasks, "offer", counted)
    for walker in (masking, offering):
        for number, request in enumerate(requests):
            walker.add(f"r{number}", **request)
        walker.engine.run()
    assert counts["offered"] > counts["refused"] > 0 and counts["deaths"], counts
    for number, request in enumerate(requests):
        name = f"r{number}"
        assert offering.engine.tokens.get(name) == masking.engine.tokens.get(name), request
        assert offering.engine.logprobs.get(name) == masking.engine.logprobs.get(name), request
        one, other = offering.engine.ends[name], masking.engine.ends[name]
        assert (one.finish_reason, one.error) == (other.finish_reason, other.error), request


def test_a_row_that_takes_what_it_may_needs_no_mask(
    walker: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, num_masked = StepMasks._receive, 0

    def counted(self: StepMasks, *args: Any) -> Any:
        nonlocal num_masked
        fences = receive(self, *args)
        num_masked += len(fences.masked)
        return fences

    monkeypatch.setattr(StepMasks, "_receive", counted)
    (letter,) = walker.tokenizer.encode("a").ids
    asked: dict[str, Any] = {"form": {"regex": "[ab]+"}, "temperature": 0.0, "max_tokens": 20}
    text, _ = walker.say(**asked, logit_bias={letter: 100.0})
    assert text == "a" * 20 and num_masked == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_greedy_row_whose_offers_were_refused_has_masks_for_some_steps(
    walker: Walker, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    offer, num_offers = StepMasks.offer, 0

    def counted(self: StepMasks, tokens: list[int]) -> Any:
        nonlocal num_offers
        num_offers += 1
        return offer(self, tokens)

    monkeypatch.setattr(StepMasks, "offer", counted)
    (letter,) = walker.tokenizer.encode("a").ids
    asked: dict[str, Any] = {"form": {"regex": "[0-9]+"}, "max_tokens": 20, "seed": 1}
    text, _ = walker.say(**asked, temperature=temperature, logit_bias={letter: 100.0})
    assert len(text) == 20
    later = len(range(MAX_REFUSED - 1, 20, STEPS_WITHOUT_OFFER + 1))
    assert num_offers == (MAX_REFUSED - 1 + later if temperature == 0 else 20)


def test_a_masker_that_dies_over_each_offer_ends_the_request_and_no_other(
    offering: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, deaths = Masks.send, 0

    def deadly(self: Masks, link: Any, frame: Any, asked: Any) -> bool:
        nonlocal deaths
        if isinstance(frame, Offers):
            os.kill(masker_of(offering), signal.SIGKILL)
            deaths += 1
        return send(self, link, frame, asked)

    monkeypatch.setattr(Masks, "send", deadly)
    offering.add("bad", {"regex": "(?s:.*)"}, temperature=0.0)
    offering.add("good", {"regex": "[ab]{9}"}, temperature=1.0, top_p=0.99, seed=1)
    offering.add("free", None, max_tokens=9)
    offering.engine.run()
    error = offering.engine.ends["bad"].error
    assert error is not None and error[0] == REFUSED and deaths == MAX_LOSSES
    assert len(offering.text("good")) == 9 and len(offering.engine.tokens["free"]) == 9
