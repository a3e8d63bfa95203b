"""The decoder of GPUs, on a CPU: with references, and with the CUDA kernels of an emulator.

It is driven by the real scheduler and runner, and must give what transformers gives.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.attention.backends import AttentionBackend, OpsAttention
from engine.core.attention.cuda import CudaAttention, CudaPrompts
from engine.core.attention.paged import StepContext
from engine.core.models import loader
from engine.core.models.fused.gpu_decoder import GpuDecoder, fuse_for_gpu
from engine.core.ops import library as ops
from engine.core.runner.model_runner import ModelRunner
from engine.core.sampling.sampler import Choices
from engine.core.scheduling.sequence import ScheduledSequence
from tests.engine.core.runner.test_decode_graphs import record_again
from tests.engine.core.runner.test_memory import TAGS, Sleeper, answers
from tests.engine.core.sampling import test_pooler as embeddings
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.greedy_oracle import (
    Folders,
    Reference,
    check_equals_transformers,
    families_in,
    make_prompts,
)
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.cuda_kernels import needs_cuda_kernels, with_cuda_kernels

pytestmark = pytest.mark.usefixtures("one_thread")
KERNELS = pytest.mark.parametrize(
    "kernels", ["torch", pytest.param("cuda", marks=with_cuda_kernels)]
)
FAMILIES = [
    "llama",
    pytest.param("mistral", marks=pytest.mark.slow),
    pytest.param("qwen2", marks=pytest.mark.slow),
    "qwen3",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    """The loader makes what it makes for a GPU, of tensors on the CPU."""

    def fuse(built: Any, config: EngineConfig, context: StepContext) -> GpuDecoder:
        for parameter in built.model.parameters():  # which lie anywhere in a mapped file
            parameter.data = parameter.data.clone()
        backend: AttentionBackend = OpsAttention(ops.REFERENCE)
        if kernels == "cuda":
            library = torch.ops.parley_cuda
            backend = CudaAttention(library, config.max_num_seqs, CudaPrompts(library))
        context.attention = backend
        named = dataclasses.replace(ops.REFERENCE, name=kernels)
        return fuse_for_gpu(built.model, named, lambda shape: backend)

    monkeypatch.setattr(loader, "_fuse", fuse)
    monkeypatch.setattr(loader, "_choose_fused", lambda *args: True)


@pytest.mark.parametrize("kernels", ["torch", pytest.param("cuda", marks=needs_cuda_kernels)])
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_decodes_and_latecomers_equal_transformers(
    family: str, kernels: str, folders: Folders
) -> None:
    engine = check_equals_transformers(folders(family), max_num_batched_tokens=5)
    assert isinstance(engine.runner.loaded.fused, GpuDecoder)
    assert engine.runner.loaded.attn_backend == kernels


@pytest.mark.parametrize("kernels", ["torch"])
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_the_text_half_of_a_larger_model_equals_transformers(
    model_type: str, kernels: str, tmp_path: Path
) -> None:
    engine = check_equals_transformers(build_family(tmp_path / model_type, model_type))
    assert isinstance(engine.runner.loaded.fused, GpuDecoder)


@KERNELS
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_recorded_decodes_equal_transformers(
    runs_ahead: bool, kernels: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sequences at most, so that some steps have rows of padding."""
    build, replayed = ModelRunner.__init__, []

    def build_and_record(runner: ModelRunner, *args: Any) -> None:
        build(runner, *args)
        runner.record_decodes(record_again)
        assert runner.graphs is not None
        run = runner.graphs.run

        def note(
            scheduled: list[ScheduledSequence], choices: Choices
        ) -> tuple[Tensor, Choices] | None:
            result = run(scheduled, choices)
            replayed.append(result is not None)
            return result

        monkeypatch.setattr(runner.graphs, "run", note)

    monkeypatch.setattr(ModelRunner, "__init__", build_and_record)
    check_equals_transformers(folders("qwen3"), max_num_seqs=6, runs_ahead=runs_ahead)
    assert any(replayed) and not all(replayed)


@KERNELS
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_preempted_sequences_equal_transformers(runs_ahead: bool, folders: Folders) -> None:
    engine = check_equals_transformers(folders("qwen3"), num_blocks=7, runs_ahead=runs_ahead)
    assert engine.scheduler.totals.preemptions > 0


@KERNELS
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("level", [1, 2])
def test_decodes_are_recorded_again_after_sleep(level: int, folders: Folders) -> None:
    sleeper = Sleeper(folders("qwen3"))
    runner, fused = sleeper.runner, sleeper.runner.loaded.fused
    runner.record_decodes(record_again)
    expected, _, _ = answers(sleeper, [])
    before = runner.graphs
    sleeper.give_back(level)
    assert isinstance(fused, GpuDecoder) and runner.graphs is None
    assert fused.cache.numel() == 0 and (fused.head.numel() == 0) == (level == 2)
    for tag in TAGS:
        sleeper.memory.take_again(tag)
    assert runner.graphs not in (None, before)
    tokens, _, _ = answers(sleeper, [(level, TAGS)])
    assert tokens == expected
    sleeper.close()


@KERNELS
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("kind", ["LAST", "MEAN", "CLS"])
def test_embeddings_equal_transformers(kind: str, runs_ahead: bool, folders: Folders) -> None:
    engine = SteppedEngine(folders("qwen3"), runs_ahead=runs_ahead, max_num_batched_tokens=7)
    assert isinstance(engine.runner.loaded.fused, GpuDecoder)
    engine.add("answer", make_prompts()[0])
    for number, prompt in enumerate(make_prompts()):
        embeddings.add(engine, str(number), prompt, pooling_type=kind)
        engine.step()
    engine.run()
    for number, prompt in enumerate(make_prompts()):
        states = embeddings.hidden_states(folders("qwen3"), prompt)
        difference = embeddings.embedding(engine, str(number)) - embeddings.pooled(states, kind)
        assert difference.abs().max() <= 1e-5


@KERNELS
@pytest.mark.usefixtures("on_gpu")
def test_the_beginning_of_a_large_block_is_found_again_and_copied(
    kernels: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = OpsAttention if kernels == "torch" else CudaPrompts
    monkeypatch.setattr(backend, "page_size", 64)
    prompt, reference = make_prompts()[2], Reference(folders("llama"))
    engine = SteppedEngine(folders("llama"), keeps_logits=True)
    for name in ("cold", "cached"):
        engine.add(name, prompt)
        engine.run()
        assert reference.check(prompt, engine.tokens[name], engine.logits[name]) < 1e-5
    assert engine.scheduler.blocks.num_hit_tokens == 32  # of 40, in units of 16


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kernels", ["torch"])
@pytest.mark.parametrize("reads_whole_pages", [False, True])
def test_where_whole_pages_are_read_nothing_is_left_in_them_of_a_failed_answer(
    reads_whole_pages: bool, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpsAttention, "page_size", 64)
    monkeypatch.setattr(OpsAttention, "reads_whole_pages", reads_whole_pages)
    engine = SteppedEngine(folders("llama"), num_blocks=4, max_num_batched_tokens=200)
    fused = engine.runner.loaded.fused
    assert isinstance(fused, GpuDecoder)
    with torch.inference_mode():
        fused.embeddings[383] = torch.nan
    engine.add("failed", [383] * 120)
    engine.run()
    assert engine.ends["failed"].error is not None
    engine.add("stopped", [383] * 250)  # of which nobody learns that it would fail
    engine.step()
    engine.scheduler.abort("me", ["stopped"])
    prompts = {"a": list(range(5, 90)), "b": list(range(5, 90))}
    for name, prompt in prompts.items():
        engine.add(name, prompt)  # the second one begins with a copy
        while len(engine.tokens.get(name, [])) < 3:
            engine.step()
    held = [block for each in engine.scheduler.running for block in each.block_table]
    pages = torch.stack([cache[held] for cache in engine.runner.caches()])
    assert bool(pages.isfinite().all()) == reads_whole_pages
    assert engine.scheduler.blocks.num_hit_tokens == 80
    reference = Reference(folders("llama"))
    engine.run()
    ids = torch.tensor([prompts["a"] + engine.tokens["a"][:-1]])
    expected = reference._model(ids).logits[0, len(prompts["a"]) - 1 :].argmax(-1).tolist()
    assert engine.tokens["a"] == engine.tokens["b"] == expected


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kernels", ["torch"])
def test_its_caches_take_what_it_says(folders: Folders) -> None:
    engine = check_equals_transformers(folders("llama"), num_blocks=9)
    fused = engine.runner.loaded.fused
    assert fused is not None
    num_bytes = sum(cache.numel() * cache.itemsize for cache in engine.runner.caches())
    assert num_bytes == 9 * 16 * fused.cache_bytes_per_token
