"""The judge of what is said of engines finds what is planted, and nothing in what is true."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients.counted_words import LIE, count_lies, question_of, undo_lies
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.connection_check import Connection
from tests.end_to_end.oracle.planted_histories import (
    RESPONSE,
    SESSION,
    created,
    delta,
    done,
    stored_session,
)
from tests.end_to_end.oracle.store_check import check_store
from tests.end_to_end.oracle.stored_state import Stored
from tests.end_to_end.storm.engines import Addresses
from tests.end_to_end.storm.facts import Claim, EngineFacts, claims_of, violations
from tests.helpers.tiny_model import oracle_word

WORD = 5


class Scene:
    """An answer that lasts from 100.0 to 110.0, and what engines say of it."""

    def __init__(self) -> None:
        self.facts = EngineFacts(Path("nowhere"))
        self.claim = Claim("resp_1", WORD, 100.0, 110.0, self.done(), {"tokens"})

    @staticmethod
    def done(reason: str = "max_output_tokens", **changed: Any) -> Frame:
        more = {name: changed.pop(name) for name in ("restarts",) if name in changed}
        response = {"status": "x", "status_details": {"reason": reason}, **more}
        return {"type": "response.done", "fence": 1, "engine": "unknown", **changed} | {
            "response": response
        }

    def engine(self, what: str, at: float, pid: int = 1, **more: Any) -> None:
        about = {"engine": "vllm", "pid": pid, "request": pid, "what": what, "at": at}
        self.facts.take({"question": [WORD], **about, **more})

    def writes(self, first: float, last: float, pid: int = 1) -> None:
        self.engine("begin", first, pid)
        self.engine("end", last, pid, num_tokens=3, last_at=last)

    def finds(self) -> str:
        found = [*violations([self.claim], self.facts, "tokens"), *self.facts.odd({WORD, 9})]
        return "\n".join(found)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_nothing_is_found_in_what_is_true(scene: Scene) -> None:
    scene.writes(101.0, 105.0)
    scene.engine("fault", 104.0, name="answer cut")
    scene.writes(106.0, 110.5, pid=2)
    scene.claim.done = scene.done(engine="released", restarts=1)
    assert scene.finds() == ""


def test_another_rung_than_the_engines_have_is_found(scene: Scene) -> None:
    scene.claim.exactness = {"tokens", "exact"}
    assert "I12 resp_1 is" in scene.finds()


def test_an_answer_that_could_go_on_and_is_given_up_is_found(scene: Scene) -> None:
    scene.claim.done = scene.done("engine_lost")
    assert "ended as engine_lost" in scene.finds()


def test_a_stop_that_is_reported_as_confirmed_and_is_not_is_found(scene: Scene) -> None:
    scene.claim.done = scene.done("client_cancelled", engine="released")
    scene.writes(101.0, 111.5)
    assert "said to be released" in scene.finds()
    scene.claim.done = scene.done("client_cancelled")
    assert scene.finds() == ""


def test_what_an_earlier_answer_to_the_same_words_had_asked_for_is_not_this_ones(
    scene: Scene,
) -> None:
    scene.claim.done = scene.done(engine="released")
    scene.claim.done["response"]["created_at"] = 1000 * (time.time() - time.monotonic() + 105.0)
    scene.writes(101.0, 113.0)
    assert scene.finds() == ""
    scene.writes(105.0, 113.0, pid=2)
    assert "said to be released" in scene.finds()


def test_a_stop_is_confirmed_for_what_the_last_owner_has_asked_for(scene: Scene) -> None:
    scene.claim.done = scene.done(engine="released", fence=2, restarts=1)
    scene.writes(101.0, 113.0)
    scene.writes(105.0, 109.0, pid=2)
    assert scene.finds() == ""
    scene.writes(106.0, 113.0, pid=3)
    assert "said to be released" in scene.finds()


def test_a_later_answer_to_the_same_words_is_another_one(scene: Scene) -> None:
    scene.claim.done = scene.done(engine="released")
    scene.writes(101.0, 109.0)
    scene.writes(112.0, 120.0, pid=2)
    assert scene.finds() == ""


def test_engines_that_ended_under_an_answer_and_are_not_reported_are_found(scene: Scene) -> None:
    scene.engine("begin", 101.0)
    scene.writes(104.0, 109.0, pid=2)
    assert scene.finds() == ""
    scene.engine("first token", 102.0)  # and then it died
    assert "reports no restart, and 2 engines wrote it" in scene.finds()


@pytest.mark.parametrize(("fence", "restarts"), [(1, 1), (3, 1)])
def test_restarts_that_have_no_cause_or_are_too_few_are_found(
    scene: Scene, fence: int, restarts: int
) -> None:
    scene.claim.done = scene.done(fence=fence, restarts=restarts)
    assert f"reports {restarts} restarts after {fence - 1} takeovers" in scene.finds()


def test_an_engine_error_without_faults_of_engines_is_found(scene: Scene) -> None:
    scene.claim.done = scene.done("engine_error")
    assert "ended as engine_error, after 0 faults" in scene.finds()
    for at in (102.0, 103.0):
        scene.engine("fault", at, name="wrong count")
    assert scene.finds() == ""


def test_a_prompt_that_nobody_was_shown_is_found(scene: Scene) -> None:
    scene.engine("begin", 101.0, question=[9, WORD])  # of a question that was added to
    assert scene.finds() == ""
    scene.engine("begin", 102.0, question=[WORD, 31])
    assert "I13 vllm was asked to go on after [5, 31]" in scene.finds()


def test_what_is_open_at_the_end_is_found_and_what_died_is_not(tmp_path: Path) -> None:
    addresses = Addresses(tmp_path, tmp_path, 1)
    addresses.facts.take(
        {"what": "begin", "at": 1.0, "engine": "vllm", "pid": 7, "request": 1, "question": [WORD]}
    )
    assert len(addresses.facts.open_at([7])) == 1 and addresses.facts.open_at([8]) == []
    addresses.facts.died(7)
    assert addresses.facts.open_at([7]) == []


@pytest.mark.parametrize(
    ("ids", "number"),
    [
        ([5], 1),
        ([5, 6, 7], 1),
        ([5, 6, 7 + LIE, 8], 1),  # a lie stands for what belongs there
        ([31, 5, 6], 2),
        ([5, 6, 6], 3),
        ([5, 6, 8], 3),
        ([5, 7], 2),
    ],
)
def test_a_prompt_is_words_and_what_follows_them(ids: list[int], number: int) -> None:
    assert question_of(ids) == number


def test_a_lie_differs_from_the_word_that_belongs_there() -> None:
    text = oracle_word(6) + oracle_word(7 + LIE) + "t0000"
    assert undo_lies(text) == oracle_word(6) + oracle_word(7)
    assert count_lies(text) == 1


def test_what_was_sent_is_taken_from_all_connections() -> None:
    first, second = Connection("first"), Connection("second")
    for frame in (created(), delta(2), done(engine="released")):
        for connection in (first, second):
            connection.received(frame)
    (claim,) = claims_of([second, first], {RESPONSE: WORD})
    assert (claim.word, claim.reason, claim.restarts) == (WORD, "eos", 0)
    assert claim.created_at <= first.records[0].time and claim.exactness == {"exact"}


def test_a_stored_text_may_lie_word_by_word_and_not_otherwise() -> None:
    lying = stored_session()
    words = [oracle_word(n) for n in (6, 7 + LIE, 8, 9)]
    run = lying.runs[RESPONSE]
    for place, word in enumerate(words):
        run.events[1 + place][1][2] = word
    lying.messages["msg_2"]["content"][0]["text"] = "".join(words)
    stored = Stored(10_000, {SESSION: lying}, set(), {SESSION}, {"u": {SESSION}}, [])
    assert "the model counts" in "\n".join(check_store(stored))
    assert list(check_store(stored, undo_lies)) == []
    run.events[4][1][2] = oracle_word(8)
    lying.messages["msg_2"]["content"][0]["text"] = "".join(words[:3]) + oracle_word(8)
    assert "the model counts" in "\n".join(check_store(stored, undo_lies))
