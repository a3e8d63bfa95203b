"""Logprobs of prompts: log_softmax of what transformers computes, in whatever steps they are read.

The bits are those of the prompt alone and at once, in every chunking, batch and after preemptions.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.core.models.fused.decoder import FusedDecoder
from engine.core.sampling.prompt_scores import score_prompts
from engine.core.sampling.token_logprobs import LogprobsMode
from engine.core.scheduling import prompt_room
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.sampling_params import SamplingParams
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import Logprobs, SteppedEngine

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

NUM_BEST = 3
MAX_DIFFERENCE = 5e-5
PROMPT = list(range(40, 75))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def check_scores(folder: Path, prompt: list[int], scores: Logprobs, num_best: int) -> None:
    """That these are the logprobs of transformers in float32, and the ranks, but for rounding."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0].float()
    expected = logits.log_softmax(-1)
    assert len(scores) == len(prompt) - 1
    for row, token, entries in zip(expected, prompt[1:], scores, strict=False):
        assert entries[0][0] == token
        ids = [token_id for token_id, _, _ in entries]
        assert len(ids) == len(set(ids)) and num_best <= len(ids) <= num_best + 1
        assert set(row.topk(num_best).indices.tolist()) <= set(ids)
        for token_id, logprob, rank in entries:
            assert abs(logprob - float(row[token_id])) <= MAX_DIFFERENCE
            least, most = (
                (row > row[token_id] + d).sum() for d in (MAX_DIFFERENCE, -MAX_DIFFERENCE)
            )
            assert least < rank <= most + 1


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 5}, {"num_blocks": 7}])
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_logprobs_of_prompts_equal_transformers(
    family: str, settings: dict[str, Any], model_impl: str, folders: Folders
) -> None:
    engine = SteppedEngine(folders(family), model_impl=model_impl, **settings)
    is_fused = isinstance(engine.runner.loaded.fused, FusedDecoder)
    assert is_fused == (family == "qwen3" and model_impl == "auto")
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, prompt_logprobs=NUM_BEST)
        engine.step()
    engine.run()
    assert (engine.scheduler.totals.preemptions > 0) == ("num_blocks" in settings)
    for number, prompt in enumerate(prompts):
        check_scores(folders(family), prompt, engine.prompt_logprobs[str(number)], NUM_BEST)


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_their_bits_are_the_same_in_every_chunking_and_batch(
    model_impl: str, folders: Folders
) -> None:
    found: list[Logprobs] = []
    for tokens, others in ((64, 0), (64, 3), (7, 0), (7, 3), (1, 1)):
        engine = SteppedEngine(
            folders("llama"), model_impl=model_impl, max_num_batched_tokens=tokens
        )
        for number in range(others):
            engine.add(f"other {number}", [9 + number] * (5 + number), prompt_logprobs=number)
            engine.step()
        engine.add("r", PROMPT, prompt_logprobs=NUM_BEST)
        engine.run()
        found.append(engine.prompt_logprobs["r"])
    assert len(found[0]) == len(PROMPT) - 1
    assert all(each == found[0] for each in found)


def test_those_who_ask_for_none_get_the_same_answers_beside_them(folders: Folders) -> None:
    answers = []
    for prompt_logprobs in (None, 2):
        engine = SteppedEngine(folders("llama"), max_num_batched_tokens=9, num_blocks=8)
        engine.add("a", PROMPT[:20], logprobs=2)
        engine.step()
        engine.add("b", PROMPT, prompt_logprobs=prompt_logprobs, temperature=1.0, seed=1)
        engine.add("c", PROMPT[5:30], repetition_penalty=1.3)
        engine.run()
        assert engine.prompt_logprobs["a"] == engine.prompt_logprobs["c"] == []
        answers.append((engine.tokens, engine.logprobs))
    assert answers[0] == answers[1]


def test_cached_prefixes_are_not_read_for_them_and_are_left_for_others(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"))
    engine.add("first", PROMPT)
    engine.run()
    engine.add("second", PROMPT, prompt_logprobs=1, skip_reading_prefix_cache=False)
    engine.run()
    assert engine.ends["second"].num_cached_tokens == 0
    assert len(engine.prompt_logprobs["second"]) == len(PROMPT) - 1
    engine.scheduler.blocks.reset_cache()
    engine.add("third", PROMPT, prompt_logprobs=1)
    engine.run()
    engine.add("fourth", PROMPT)
    engine.run()
    assert engine.ends["fourth"].num_cached_tokens == 32


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_steps_that_are_started_ahead_give_the_same(model_impl: str, folders: Folders) -> None:
    found = []
    for runs_ahead in (False, True):
        engine = SteppedEngine(
            folders("qwen3"),
            model_impl=model_impl,
            runs_ahead=runs_ahead,
            max_num_batched_tokens=9,
            num_blocks=9,
        )
        for number, prompt in enumerate(make_prompts()):
            engine.add(str(number), prompt, prompt_logprobs=number)
            engine.step()
        engine.run()
        assert engine.scheduler.totals.preemptions > 0
        found.append((engine.tokens, engine.prompt_logprobs))
    assert found[0] == found[1]


def test_resumed_tokens_are_no_part_of_the_prompt(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"), max_num_batched_tokens=8)
    engine.add("whole", PROMPT, prompt_logprobs=NUM_BEST)
    engine.run()
    resumed = engine.tokens["whole"][:10]
    engine.add("resumed", PROMPT, prompt_logprobs=NUM_BEST, resume_token_ids=resumed)
    engine.run()
    assert engine.prompt_logprobs["resumed"] == engine.prompt_logprobs["whole"]
    assert resumed + engine.tokens["resumed"] == engine.tokens["whole"]


def test_the_whole_vocabulary_or_the_prompt_s_tokens_alone(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"))
    engine.add("all", PROMPT, prompt_logprobs=-1)
    engine.add("none", PROMPT, prompt_logprobs=0)
    engine.add("one token", [7], prompt_logprobs=5)
    engine.run()
    vocab = engine.runner.loaded.vocab_size
    check_scores(folders("llama"), PROMPT, engine.prompt_logprobs["all"], vocab)
    check_scores(folders("llama"), PROMPT, engine.prompt_logprobs["none"], 0)
    assert engine.prompt_logprobs["one token"] == []


@pytest.mark.parametrize("max_logits", [1, 2000])
def test_a_step_holds_a_bounded_number_of_their_logits(
    max_logits: int, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_room, "MAX_PROMPT_LOGITS", max_logits)
    engine = SteppedEngine(folders("llama"))
    vocab = engine.runner.loaded.vocab_size
    launch = engine.runner.launch
    steps: list[dict[str, int]] = []

    def counted(scheduled: list[ScheduledSequence]) -> Any:
        steps.append({item.sequence.request_id: len(item.scored) for item in scheduled})
        return launch(scheduled)

    vars(engine.runner).update(launch=counted)
    for name in "abc":
        engine.add(name, PROMPT, prompt_logprobs=1)
    engine.add("other", PROMPT[::-1])
    engine.run()
    for name in "abc":
        check_scores(folders("llama"), PROMPT, engine.prompt_logprobs[name], 1)
    assert "other" in steps[0]  # whose logits are not wanted
    assert max(sum(step.values()) for step in steps) == max(1, max_logits // (vocab + 128))


def rows_of_ids(num_rows: int) -> list[list[int]]:
    """Four ids for each row, the last of which is none in every second one."""
    rows = torch.randint(0, 380, (num_rows, 4), generator=torch.Generator().manual_seed(2))
    rows[::2, 3] = -1
    return [list(row) for row in rows.tolist()]


def check_ids(folder: Path, prompt: list[int], rows: list[list[int]], scores: bytes) -> None:
    """That these are the logprobs of transformers in float32 at the last rows of the prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0].float()
    ids = torch.tensor(rows)
    expected = logits.log_softmax(-1)[-1 - len(rows) : -1].gather(1, ids.clamp(min=0))
    found = torch.from_numpy(np.frombuffer(scores, np.float32).copy()).reshape(ids.shape)
    assert (found[ids < 0] == -torch.inf).all()
    assert (found - expected)[ids >= 0].abs().max() <= MAX_DIFFERENCE


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 5}, {"num_blocks": 7}])
@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_logprobs_of_given_ids_equal_transformers(
    model_impl: str, settings: dict[str, Any], runs_ahead: bool, folders: Folders
) -> None:
    engine = SteppedEngine(
        folders("qwen3"), model_impl=model_impl, runs_ahead=runs_ahead, **settings
    )
    asked = {}
    for number, prompt in enumerate(make_prompts()):
        start = number if len(prompt) > number + 1 else 0
        rows = rows_of_ids(len(prompt) - 1 - start) or [[1, 2]]
        asked[str(number)] = (prompt, rows)
        both = {"prompt_logprobs": NUM_BEST if number % 2 else None}
        engine.add(
            str(number), prompt, prompt_logprob_token_ids=rows, prompt_logprob_start=start, **both
        )
        engine.step()
    engine.run()
    assert (engine.scheduler.totals.preemptions > 0) == ("num_blocks" in settings)
    for name, (prompt, rows) in asked.items():
        if len(prompt) == 1:
            assert engine.prompt_id_logprobs[name] == b""
            continue
        check_ids(folders("qwen3"), prompt, rows, engine.prompt_id_logprobs[name])
        if int(name) % 2:
            check_scores(folders("qwen3"), prompt, engine.prompt_logprobs[name], NUM_BEST)
        else:
            assert engine.prompt_logprobs[name] == []


def test_one_list_of_ids_holds_for_every_row(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"), max_num_batched_tokens=8)
    engine.add("same", PROMPT, prompt_logprob_token_ids=np.array([4, 9, -1]))
    engine.add("each", PROMPT, prompt_logprob_token_ids=[(4, 9)] * (len(PROMPT) - 1))
    engine.run()
    rows = [[4, 9, -1]] * (len(PROMPT) - 1)
    check_ids(folders("llama"), PROMPT, rows, engine.prompt_id_logprobs["same"])
    check_ids(
        folders("llama"), PROMPT, [row[:2] for row in rows], engine.prompt_id_logprobs["each"]
    )


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_logits_of_a_prompt_are_reported_where_the_engine_does_so(
    kind: str, folders: Folders
) -> None:
    engines = [
        SteppedEngine(folders("llama"), logprobs_mode=f"{kind}_{unit}")
        for unit in ("logprobs", "logits")
    ]
    for engine in engines:
        params: dict[str, Any] = {"prompt_logprobs": -1, "prompt_logprob_token_ids": [3, 5]}
        engine.add("r", PROMPT, temperature=0.5, seed=1, repetition_penalty=2.0, **params)
        engine.run()
    of_logprobs, of_logits = (engine.prompt_logprobs["r"] for engine in engines)
    for logprobs, logits in zip(of_logprobs, of_logits, strict=True):
        found = torch.tensor([value for _, value, _ in logits]).log_softmax(-1)
        assert [entry[::2] for entry in logits] == [entry[::2] for entry in logprobs]
        assert torch.allclose(found, torch.tensor([value for _, value, _ in logprobs]))
    (first,) = of_logits[:1]
    rows = np.frombuffer(engines[1].prompt_id_logprobs["r"], np.float32).reshape(-1, 2)
    assert rows[0].tolist() == [dict((i, v) for i, v, _ in first)[token] for token in (3, 5)]


def test_tokens_before_the_first_row_need_no_logits(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_room, "MAX_PROMPT_LOGITS", 2000)
    engine = SteppedEngine(folders("llama"))
    engine.add("late", PROMPT, prompt_logprob_token_ids=[7], prompt_logprob_start=30)
    engine.step()
    assert engine.scheduler.running[0].num_computed_tokens > 30
    engine.run()
    rows = [[7]] * (len(PROMPT) - 31)
    check_ids(folders("llama"), PROMPT, rows, engine.prompt_id_logprobs["late"])


@pytest.mark.parametrize(
    "params",
    [
        {"prompt_logprob_token_ids": [[1]] * 3},
        {"prompt_logprob_token_ids": [1], "prompt_logprob_start": len(PROMPT)},
        {"prompt_logprob_token_ids": [1 << 40]},
    ],
)
def test_ids_that_do_not_fit_the_prompt_end_their_request_alone(
    params: dict[str, Any], folders: Folders
) -> None:
    engine = SteppedEngine(folders("llama"))
    engine.add("bad", PROMPT, **params)
    engine.add("good", PROMPT)
    engine.run()
    assert engine.ends["bad"].error is not None
    assert engine.ends["bad"].error[0] == "invalid_request"
    assert len(engine.tokens["good"]) == 24


def test_tokens_that_are_equally_likely_share_a_rank() -> None:
    sequence = Sequence("me", "r", [4, 3, 0, 1], SamplingParams(prompt_logprobs=4))
    part = ScheduledSequence(sequence, 4)
    logits = torch.tensor([[2.0, 1.0, 2.0, 1.0, -torch.inf]] * 3)
    score_prompts([part], logits, LogprobsMode())
    of_three, of_zero, of_one = part.prompt_logprobs
    expected = logits[0].log_softmax(-1).tolist()
    for scores, token in ((of_three, 3), (of_zero, 0), (of_one, 1)):
        assert scores[0][0] == token
        assert sorted(scores) == [(n, expected[n], (1, 3, 1, 3)[n]) for n in range(4)]


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_an_abort_at_any_step_frees_everything_and_disturbs_nobody(
    num_steps: int, folders: Folders
) -> None:
    engine = SteppedEngine(folders("llama"), max_num_batched_tokens=12)
    engine.add("other", PROMPT[::-1], prompt_logprobs=1)
    engine.add("aborted", PROMPT, prompt_logprobs=1)
    for _ in range(num_steps):
        engine.step()
    engine.scheduler.abort("me", ["aborted"])
    engine.run()
    assert engine.ends["aborted"].finish_reason == "abort"
    check_scores(folders("llama"), PROMPT[::-1], engine.prompt_logprobs["other"], 1)
