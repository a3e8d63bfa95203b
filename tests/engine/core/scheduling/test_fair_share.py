"""A user beside one who asks for all: the first tokens come in twice the steps at most.

Every case is played twice, alone and beside the other user, and compared by what does not depend on
the machine: steps, and tokens computed, until the last of the user's answers has its first token.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.core.scheduling.sequence import Sequence
from tests.engine.helpers.fakes import FakeModel, make_scheduler
from tests.engine.helpers.scheduler_run import Run
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.tiny_model import build_tiny_model

STEP_TOKENS = 512
MANY = 10_000  # tokens: an answer of the other user never ends here


@dataclass(frozen=True)
class Load:
    """What a user asks for in one moment."""

    count: int
    num_prompt_tokens: int


class Crowd:
    """A scheduler of the default size, with more blocks than anybody needs unless told."""

    def __init__(self, num_blocks: int = 20_000) -> None:
        scheduler = make_scheduler(
            num_blocks=num_blocks,
            block_size=16,
            max_model_len=num_blocks * 16,
            max_num_batched_tokens=STEP_TOKENS,
            max_step_seconds=0.0,
        )
        self.run = Run(scheduler, FakeModel(lambda sequence: 1 + sequence.num_tokens % 900))
        self._num_asked = 0

    def ask(self, user: str, load: Load, max_tokens: int = MANY) -> None:
        for _ in range(load.count):
            self._num_asked += 1
            prompt = [self._num_asked] + [7] * (load.num_prompt_tokens - 1)  # nothing is shared
            name = f"{user}{self._num_asked}"
            self.run.add(name, prompt=prompt, cache_salt=user, max_tokens=max_tokens)

    def cost(self, user: str, load: Load) -> tuple[int, int]:
        """(steps, tokens computed) until each of these answers has its first token."""
        before = set(self.run.scheduler.sequences)
        self.ask(user, load, max_tokens=400)
        mine = [s for key, s in self.run.scheduler.sequences.items() if key not in before]
        assert len(mine) == load.count
        num_steps = num_tokens = 0
        while not all(sequence.first_token_ts for sequence in mine):
            num_tokens += sum(self.run.step().values())
            num_steps += 1
            assert num_steps < 5_000, "somebody starves"
        return num_steps, num_tokens

    def running(self, user: str) -> list[Sequence]:
        return [it for it in self.run.scheduler.running if it.cache_salt == user]


LOADS = [Load(1, 48), Load(1, 3000), Load(40, 48), Load(40, 300)]
HOGS = {
    "answers": Load(64, 20),
    "answers and a queue": Load(164, 20),
    "long prompts and a queue": Load(164, 3000),
}


def beside(hog: Load, num_steps: int = 20) -> Crowd:
    """One user who has asked for so much, some steps ago."""
    crowd = Crowd()
    crowd.ask("a", hog)
    for _ in range(num_steps):
        crowd.run.step()
    return crowd


@pytest.mark.row("P14")
@pytest.mark.parametrize("hog", HOGS)
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_first_tokens_beside_a_user_who_asks_for_all_take_at_most_twice_the_steps(
    load: Load, hog: str
) -> None:
    num_steps, num_tokens = Crowd().cost("b", load)
    crowd = beside(HOGS[hog])
    num_steps_beside, num_tokens_beside = crowd.cost("b", load)
    assert num_steps_beside <= 2 * num_steps
    # A step holds up to 64 tokens of answers, and parts of the other user's prompts.
    assert num_tokens_beside <= 2 * max(num_tokens, num_steps * STEP_TOKENS)


@pytest.mark.row("P14")
def test_a_short_question_is_read_in_a_step_without_another_users_answers() -> None:
    crowd = beside(HOGS["answers and a queue"])
    crowd.ask("b", Load(1, 48))
    assert [*crowd.run.step().values()] == [48]
    assert len(crowd.run.step()) == 64  # the next step is everybody's
    crowd.ask("b", Load(1, 48))
    crowd.run.step()
    assert crowd.run.step().keys() >= {it.request_id for it in crowd.running("b")[:1]}


@pytest.mark.row("P14")
def test_a_step_kept_for_others_who_do_not_fit_computes_those_who_do() -> None:
    run = Run(make_scheduler(num_blocks=8, max_model_len=32, max_num_seqs=4))
    for number in range(3):
        run.add(f"a{number}", prompt=[number + 1] * 4, cache_salt="a", max_tokens=4)
    run.step()
    run.add("b", prompt=[9] * 30, cache_salt="b", max_tokens=2)
    while run.scheduler.sequences:
        assert run.step(), "nothing is computed, though somebody waits"
    assert run.ends() == dict.fromkeys(["a0", "a1", "a2", "b"], "length")


@pytest.mark.row("P14")
def test_a_user_who_asks_again_and_again_is_served_as_quickly_each_time() -> None:
    crowd = beside(HOGS["answers and a queue"])
    alone, load = Crowd(), Load(40, 48)
    for _ in range(3):
        assert crowd.cost("b", load)[0] <= 2 * alone.cost("b", load)[0]
        for each in (crowd, alone):
            for sequence in each.running("b"):
                each.run.scheduler.abort("me", [sequence.request_id])
    assert crowd.run.scheduler.totals.preemptions == 0  # so nothing is computed twice


@pytest.mark.row("P14")
def test_no_user_starves_and_no_place_of_a_step_stays_empty() -> None:
    crowd = beside(HOGS["answers and a queue"])
    crowd.cost("b", Load(40, 48))
    before = {it.request_id: it.num_tokens for it in crowd.run.scheduler.running}
    num_steps = 100
    for _ in range(num_steps):
        assert len(crowd.run.step()) == 64
    gained = {
        user: [it.num_tokens - before[it.request_id] for it in crowd.running(user)] for user in "ab"
    }
    assert sum(gained["a"]) == sum(gained["b"]) == 32 * num_steps
    for user in "ab":  # and all answers of a user get on alike
        assert max(gained[user]) - min(gained[user]) <= 1


@pytest.mark.row("P14")
def test_a_long_question_is_read_however_many_short_ones_others_ask() -> None:
    crowd = Crowd()
    crowd.ask("a", Load(1, 3000))
    for _ in range(2 * 3000 // STEP_TOKENS + 1):
        crowd.ask("b", Load(20, 48), max_tokens=1)
        crowd.run.step()
    assert crowd.running("a")[0].first_token_ts


@pytest.mark.row("P14")
def test_a_queue_that_one_user_has_filled_refuses_no_other_who_finds_a_seat() -> None:
    run = Run(make_scheduler(max_num_seqs=2, max_num_queued_reqs=3))
    for number in range(6):
        run.add(f"a{number}", cache_salt="a", max_tokens=9)
        run.step()
    assert run.ends() == {"a5": "error"}
    for number in range(3):
        run.add(f"b{number}", cache_salt="b", max_tokens=9)
    assert run.ends().keys() == {"a5", "b2"}
    assert {"b0", "b1"} <= run.step().keys() | run.step().keys()


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.mark.row("P14")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_answers_that_take_turns_are_those_of_a_user_alone(
    tiny_llama: Path, runs_ahead: bool
) -> None:
    texts = []
    for users in ("aabbcc", "a", "b", "c"):
        engine = SteppedEngine(
            tiny_llama,
            max_num_seqs=2,
            num_blocks=64,
            max_num_batched_tokens=16,
            runs_ahead=runs_ahead,
        )
        for number, user in enumerate("aabbcc"):
            if user in users:
                prompt = [(7 * number + place) % 100 for place in range(10 * number + 5)]
                engine.add(f"{user}{number}", prompt, cache_salt=user, seed=number, temperature=1.0)
        engine.run()
        texts.append(engine.tokens)
    together, *alone = texts
    assert together == {name: tokens for part in alone for name, tokens in part.items()}
