"""Embeddings against transformers' own hidden states, whatever the batch looks like.

Prompts are read in chunks of five tokens beside answers that are decoded, and are preempted for
want of blocks.
"""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.core.models.fused.decoder import FusedDecoder
from engine.core.sampling.pooler import pool_prompts
from engine.core.scheduling.sequence import ScheduledSequence, Sequence, Tokens
from engine.ipc import AddRequest
from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

TYPES = ["LAST", "MEAN", "CLS"]
FUSED, UNFUSED = ["llama", "qwen3", "mistral"], ["gpt2", "gemma2", "opt", "qwen3_moe"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def add(engine: SteppedEngine, request_id: str, prompt: list[int], **pooling: Any) -> None:
    params = SamplingParams(max_tokens=1)
    request = AddRequest(request_id, prompt, params, 0.0, pooling=PoolingParams(**pooling))
    assert engine.scheduler.add("me", request, 0.0) is not None


def embedding(engine: SteppedEngine, request_id: str) -> Tensor:
    end = engine.ends[request_id]
    assert (end.finish_reason, end.new_token_ids, end.error) == ("stop", [], None)
    assert end.embedding is not None
    return torch.tensor(array("f", end.embedding))


def hidden_states(folder: Path, prompt: list[int]) -> Tensor:
    """Of transformers, after the last norm: [num_tokens, width]."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").base_model
    with torch.inference_mode():
        states: Tensor = model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    return states


def pooled(states: Tensor, kind: str, dimensions: int | None = None) -> Tensor:
    """Of length 1."""
    of_type = {"LAST": states[-1], "MEAN": states.mean(0), "CLS": states[0]}
    return torch.nn.functional.normalize(of_type[kind][:dimensions], dim=-1)


@pytest.mark.parametrize("family", FUSED + UNFUSED)
def test_embeddings_beside_answers_equal_transformers(family: str, folders: Folders) -> None:
    engine = SteppedEngine(folders(family), max_num_batched_tokens=5)
    if family in UNFUSED:
        assert engine.runner.loaded.fused is None
    engine.add("answer", make_prompts()[0])
    for number, prompt in enumerate(make_prompts()):
        for kind in TYPES:
            add(engine, f"{kind} {number}", prompt, pooling_type=kind)
        engine.step()
    engine.run()
    assert len(engine.tokens["answer"]) == 24
    for number, prompt in enumerate(make_prompts()):
        states = hidden_states(folders(family), prompt)
        for kind in TYPES:
            difference = embedding(engine, f"{kind} {number}") - pooled(states, kind)
            assert difference.abs().max() <= 1e-5


@needs_kernels
def test_families_are_fused_where_there_are_kernels(folders: Folders) -> None:
    for family in FUSED:
        assert isinstance(SteppedEngine(folders(family)).runner.loaded.fused, FusedDecoder)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", TYPES)
def test_the_bits_are_the_same_alone_in_chunks_and_after_a_preemption(
    kind: str, family: str, folders: Folders
) -> None:
    prompts = make_prompts()
    alone = SteppedEngine(folders(family))
    for number, prompt in enumerate(prompts):
        add(alone, str(number), prompt, pooling_type=kind, skip_reading_prefix_cache=True)
        alone.run()
    crowded = SteppedEngine(
        folders(family), max_num_batched_tokens=7, num_blocks=4, enable_prefix_caching=False
    )
    for number, prompt in enumerate(prompts):
        crowded.add(f"answer {number}", prompt[:12])
        add(crowded, str(number), prompt, pooling_type=kind)
        crowded.step()
    crowded.run()
    assert crowded.scheduler.totals.preemptions > 0
    for number in range(len(prompts)):
        assert embedding(alone, str(number)).equal(embedding(crowded, str(number)))


def test_an_embedding_that_is_preempted_amid_its_prompt_has_the_same_bits(
    folders: Folders,
) -> None:
    engine = SteppedEngine(folders("llama"), max_num_batched_tokens=8)
    prompt = make_prompts()[2]
    add(engine, "whole", prompt, pooling_type="MEAN")
    engine.run()
    add(engine, "halved", prompt, pooling_type="MEAN")
    engine.step()
    engine.step()
    engine.scheduler.preempt_all()
    engine.run()
    assert engine.ends["halved"].num_preemptions == 1
    assert embedding(engine, "halved").equal(embedding(engine, "whole"))


@pytest.mark.parametrize("kind", TYPES)
def test_the_prefix_cache_is_read_only_for_the_last_token(kind: str, folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"))
    prompt = make_prompts()[2]
    engine.add("answer", prompt)
    engine.run()
    add(engine, "warm", prompt, pooling_type=kind)
    engine.run()
    assert engine.ends["warm"].num_cached_tokens == (32 if kind == "LAST" else 0)
    expected = pooled(hidden_states(folders("llama"), prompt), kind)
    assert (embedding(engine, "warm") - expected).abs().max() <= 1e-5
    add(engine, "cold", prompt, pooling_type=kind, skip_reading_prefix_cache=True)
    engine.run()
    assert embedding(engine, "cold").equal(embedding(engine, "warm"))


def test_an_answer_reads_the_prefix_that_an_embedding_has_computed(folders: Folders) -> None:
    prompt = make_prompts()[2]
    answers = []
    for is_warm in (False, True):
        engine = SteppedEngine(folders("llama"))
        if is_warm:
            add(engine, "embedding", prompt, pooling_type="MEAN")
            engine.run()
        engine.add("answer", prompt)
        engine.run()
        answers.append(engine.tokens["answer"])
    assert engine.ends["answer"].num_cached_tokens == 32
    assert answers[0] == answers[1]


def test_dimensions_are_cut_before_the_length_becomes_one(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"))
    prompt = make_prompts()[0]
    add(engine, "cut", prompt, dimensions=10)
    add(engine, "raw", prompt, normalize=False)
    engine.run()
    states = hidden_states(folders("llama"), prompt)
    assert (embedding(engine, "cut") - pooled(states, "LAST", 10)).abs().max() <= 1e-5
    assert (embedding(engine, "raw") - states[-1]).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_no_logits_are_computed_for_a_prompt_that_is_pooled(
    family: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SteppedEngine(folders(family))
    shapes = []
    forward = engine.runner.forward

    def watched(batch: Any) -> Tensor:
        logits = forward(batch)
        shapes.append(tuple(logits.shape))
        return logits

    monkeypatch.setattr(engine.runner, "forward", watched)
    add(engine, "r", make_prompts()[0], pooling_type="MEAN")
    engine.run()
    assert shapes == [(0, engine.runner.loaded.vocab_size)]


@pytest.mark.parametrize("kind", TYPES)
def test_steps_that_run_ahead_give_the_same_embeddings(kind: str, folders: Folders) -> None:
    results = []
    for runs_ahead in (False, True):
        engine = SteppedEngine(folders("qwen3"), runs_ahead=runs_ahead, max_num_batched_tokens=6)
        engine.add("answer", make_prompts()[1])
        for number, prompt in enumerate(make_prompts()):
            add(engine, str(number), prompt, pooling_type=kind)
            engine.step()
        engine.run()
        results.append([embedding(engine, str(number)) for number in range(len(make_prompts()))])
        assert len(engine.tokens["answer"]) == 24
    assert all(one.equal(other) for one, other in zip(*results, strict=True))


def test_an_abort_amid_the_prompt_frees_its_blocks(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"), max_num_batched_tokens=5)
    add(engine, "r", make_prompts()[2], pooling_type="MEAN")
    engine.step()
    engine.scheduler.abort("me", ["r"])
    engine.step()
    end = engine.ends["r"]
    assert (end.finish_reason, end.embedding) == ("abort", None)
    assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_blocks


@pytest.mark.parametrize("kind", TYPES)
def test_the_readable_decoder_gives_the_same(kind: str, folders: Folders) -> None:
    engine = SteppedEngine(folders("qwen3"), attn_backend="torch", max_num_batched_tokens=5)
    prompt = make_prompts()[2]
    add(engine, "r", prompt, pooling_type=kind)
    engine.run()
    expected = pooled(hidden_states(folders("qwen3"), prompt), kind)
    assert (embedding(engine, "r") - expected).abs().max() <= 1e-5


def test_what_is_no_number_ends_its_request_alone() -> None:
    scheduled = []
    for name in ("sick", "sound"):
        sequence = Sequence("me", name, [1, 2], SamplingParams(), pooling=PoolingParams())
        scheduled.append(ScheduledSequence(sequence, 2))
    results: Tokens = [None, None]
    pool_prompts(scheduled, torch.tensor([[torch.nan, 1.0], [0.0, 2.0]]), results)
    assert results[0] is not None and results[1] is not None
    assert results[0].error == ("engine_error", "the model gave no finite hidden states")
    assert array("f", results[1].embedding or b"").tolist() == [0.0, 1.0]
