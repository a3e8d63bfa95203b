"""The runner: the tokens of transformers' greedy `generate`, whatever the batch looks like.

Each comparison runs the real scheduler, so prompts are prefilled in chunks of five tokens,
sequences join late, share steps, and are preempted for want of blocks.
"""

import dataclasses
from array import array
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.loader import load_model
from engine.core.ops import library as ops
from engine.core.ops.decoder_reference import decoder_step_reference
from engine.core.runner.invariance import RowInvariance
from engine.core.runner.model_runner import ModelRunner
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import Batch, build_batch
from engine.errors import UnsupportedModelError
from engine.sampling_params import SamplingParams
from tests.engine.helpers.greedy_oracle import (
    MAX_LOGIT_DIFFERENCE,
    NUM_TOKENS,
    Folders,
    Reference,
    check_equals_transformers,
    families_in,
    make_prompts,
)
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ["llama", "qwen3", "gpt2"]
OTHER_FAMILIES = [
    "qwen2",
    "mistral",
    "gemma2",
    "gemma3",
    "phi3",
    "opt",
    "gpt_neox",
    "gpt_bigcode",
    "stablelm",
    "starcoder2",
    "olmo2",
    "smollm3",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v3",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_decodes_and_latecomers_equal_transformers(
    family: str, backend: str, folders: Folders
) -> None:
    check_equals_transformers(folders(family), max_num_batched_tokens=5, attn_backend=backend)


@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_sequences_equal_transformers(family: str, folders: Folders) -> None:
    engine = check_equals_transformers(folders(family), num_blocks=7)
    assert engine.scheduler.totals.preemptions > 0


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 5}, {"num_blocks": 7}])
def test_steps_that_are_started_ahead_equal_transformers(
    settings: dict[str, int], model_impl: str, folders: Folders
) -> None:
    engine = check_equals_transformers(
        folders("qwen3"), runs_ahead=True, model_impl=model_impl, **settings
    )
    assert (engine.scheduler.totals.preemptions > 0) == ("num_blocks" in settings)


def test_running_ahead_changes_no_answer_whatever_its_parameters(folders: Folders) -> None:
    params: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 1, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "seed": 2, "presence_penalty": 0.7, "min_tokens": 5},
        {"temperature": 0.0, "logprobs": 2, "bad_words_token_ids": [[7], [8, 9]]},
        {"temperature": 1.0, "seed": 3, "logit_bias": {5: 3.0}, "allowed_token_ids": [5, 6, 7]},
    ]
    answers = []
    for runs_ahead in (False, True):
        engine = SteppedEngine(
            folders("llama"), runs_ahead=runs_ahead, num_blocks=9, max_num_batched_tokens=9
        )
        for number, prompt in enumerate(make_prompts()):
            engine.add(str(number), prompt, **params[number])
            engine.step()
        engine.run()
        answers.append((engine.tokens, engine.logprobs))
        assert engine.scheduler.totals.preemptions > 0
    assert answers[0] == answers[1]


def test_a_step_is_waited_for_also_where_it_chose_no_token(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU nothing else says that it has ended, and that its inputs may be written over."""
    engine = SteppedEngine(folders("llama"), runs_ahead=True, max_num_batched_tokens=8)
    download = engine.runner._download
    start = download.start
    events: list[str] = []

    def noted(tokens: Tensor) -> Any:
        read, number = start(tokens), len(events)
        events.append(f"{len(tokens)} started")

        def waited() -> list[int]:
            events.append(f"{number} waited for")
            return read()

        return waited

    monkeypatch.setattr(download, "start", noted)
    engine.add("a", list(range(5, 29)), max_tokens=1)
    engine.run()
    assert events == [
        *("0 started", "0 started", "0 waited for"),
        *("1 started", "1 waited for", "3 waited for"),
    ]


def test_logprobs_are_read_before_the_next_step_writes_over_the_logits(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where their memory is found missing, the step can be tried again."""
    engine = SteppedEngine(folders("llama"))
    engine.add("a", [5, 6, 7], logprobs=3)
    scheduled = engine.scheduler.schedule(0.0)
    logits = torch.empty(0)

    forward = engine.runner.forward

    def keep(batch: Batch) -> Tensor:
        nonlocal logits
        logits = forward(batch)
        return logits

    monkeypatch.setattr(engine.runner, "forward", keep)
    wait = engine.runner.launch(scheduled)
    expected = logits.log_softmax(-1).topk(3)
    with torch.inference_mode():
        logits.zero_()
    (token,) = wait()
    assert token is not None and token.logprobs is not None
    found = sorted(token.logprobs, key=lambda entry: entry[2])
    assert [entry[0] for entry in found] == expected.indices[0].tolist()
    assert [entry[1] for entry in found] == expected.values[0].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_and_from_the_prefix_cache_equals_transformers(family: str, folders: Folders) -> None:
    prompt = make_prompts()[2]
    engine = SteppedEngine(folders(family), keeps_logits=True)
    reference = Reference(folders(family))
    for name in ("cold", "cached"):
        engine.add(name, prompt)
        engine.run()
        difference = reference.check(prompt, engine.tokens[name], engine.logits[name])
        assert difference <= MAX_LOGIT_DIFFERENCE
    assert engine.scheduler.blocks.num_hit_tokens == 32


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_every_supported_architecture_equals_transformers(family: str, folders: Folders) -> None:
    check_equals_transformers(folders(family), max_num_batched_tokens=5)


def test_seeded_answers_are_alike_alone_batched_and_resumed(folders: Folders) -> None:
    prompts = make_prompts()
    params: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 5}
    together = SteppedEngine(folders("llama"))
    for number, prompt in enumerate(prompts):
        together.add(str(number), prompt, **params)
    together.run()
    engine = SteppedEngine(folders("llama"), max_num_batched_tokens=5)
    engine.add("alone", prompts[2], **params)
    engine.run()
    answer = engine.tokens["alone"]
    assert together.tokens["2"] == answer
    engine.add("resumed", prompts[2], resume_token_ids=answer[:10], **params)
    engine.run()
    assert engine.tokens["resumed"] == answer[10:]


def few_bit_logits(engine: SteppedEngine, ids: list[int]) -> Tensor:
    """After each token, of the readable decoder with the engine's packed weights."""
    fused = engine.runner.loaded.fused
    assert isinstance(fused, FusedDecoder)
    reference = FusedDecoder(fused.shape, fused.weights, fused.rotate, decoder_step_reference)
    sequence = Sequence("", "reference", ids, SamplingParams())
    sequence.block_table = array("i", range(-(-len(ids) // 16)))
    reference.allocate_cache(len(sequence.block_table), len(ids))
    batch = build_batch([ScheduledSequence(sequence, len(ids))], 16)
    rows = torch.arange(len(ids))
    return reference.forward(dataclasses.replace(batch, logits_rows=rows, num_sampled=len(ids)))


@needs_kernels
@pytest.mark.parametrize(
    ("weights", "cache", "share", "largest"),
    [("int8", "auto", 0.9, 0.1), ("int8", "int8", 0.5, 0.1), ("int4", "auto", 0.5, 0.2)],
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_answers_of_few_bits_equal_the_reference_with_the_same_weights(
    family: str, weights: str, cache: str, share: float, largest: float, folders: Folders
) -> None:
    """Chunks of five beside decodes. Where a sum ends between two steps of a row's numbers, the
    order of its summands decides which is nearer: few logits differ for that reason, by little. In
    a cache such a number stays, for all tokens after it.
    """
    engine = SteppedEngine(
        folders(family),
        keeps_logits=True,
        quantization=weights,
        kv_cache_dtype=cache,
        max_num_batched_tokens=5,
    )
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS)
    engine.run()
    differences = []
    for number, prompt in enumerate(prompts):
        answer = engine.tokens[str(number)]
        expected = few_bit_logits(engine, prompt + answer[:-1])[len(prompt) - 1 :]
        chosen = expected.gather(1, torch.tensor(answer)[:, None]).squeeze(1)
        assert (expected.amax(-1) - chosen).max() < largest  # the best, or one that is as good
        difference = (torch.stack(engine.logits[str(number)]) - expected).abs().amax(-1)
        differences += difference.tolist()
    assert len(differences) == NUM_TOKENS * len(prompts)
    assert sum(difference < 1e-4 for difference in differences) > share * len(differences)
    assert max(differences) < largest


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "bytes_for",
    [
        {"quantization": "int8"},
        {"kv_cache_dtype": "int8"},
        {"quantization": "int8", "kv_cache_dtype": "int8"},
        {"quantization": "int4"},
    ],
    ids=["weights", "cache", "both", "four bits"],
)
def test_answers_of_few_bits_are_the_same_to_the_last_bit_alone_and_batched(
    bytes_for: dict[str, str], dtype: str, folders: Folders
) -> None:
    settings: dict[str, Any] = {"keeps_logits": True, "dtype": dtype, **bytes_for}
    prompts = make_prompts()
    together = SteppedEngine(folders("llama"), max_num_batched_tokens=5, **settings)
    assert together.runner.invariance == RowInvariance(row_multiple=1, is_proven=True)
    for number, prompt in enumerate(prompts):
        together.add(str(number), prompt)
    together.run()
    engine = SteppedEngine(folders("llama"), **settings)
    for number, prompt in enumerate(prompts):
        name = str(number)
        engine.add(name, prompt)
        engine.run()
        assert engine.tokens[name] == together.tokens[name]
        assert torch.equal(torch.stack(engine.logits[name]), torch.stack(together.logits[name]))


@needs_kernels
def test_the_probe_leaves_no_memory_for_logits_behind(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"))
    fused = engine.runner.loaded.fused
    assert isinstance(fused, FusedDecoder)
    assert fused._memory.numel() == 0
    engine.add("r", [5, 6, 7], max_tokens=2)
    engine.run()
    assert len(fused._memory) == 1


def test_logits_that_are_not_numbers_end_their_own_sequence_only(folders: Folders) -> None:
    """A token whose embedding is NaN poisons its row; the others of the step do not notice."""
    prompts = make_prompts()
    prompts[1] = [383, *prompts[1]]
    engine = SteppedEngine(folders("llama"), keeps_logits=True)
    loaded: Any = engine.runner.loaded
    fused, general = loaded.fused, loaded.model.model
    table = fused.weights.embeddings if fused else general.embed_tokens.weight
    with torch.inference_mode():
        table[383] = torch.nan
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt)
    engine.run()
    end = engine.ends["1"]
    assert (end.finish_reason, end.new_token_ids) == ("error", [])
    assert end.error is not None and "no finite logits" in end.error[1]
    reference = Reference(folders("llama"))
    for number in (0, 2, 3, 4, 5):
        reference.check(prompts[number], engine.tokens[str(number)], engine.logits[str(number)])


def test_logits_of_a_bfloat16_model_are_sampled_as_float32(folders: Folders) -> None:
    engine = SteppedEngine(folders("gemma2"), keeps_logits=True, dtype="bfloat16")
    assert engine.runner.loaded.dtype == torch.bfloat16
    engine.add("r", [5, 6, 7], max_tokens=2)
    engine.run()
    assert engine.logits["r"][0].dtype == torch.float32


def test_a_cache_that_no_machine_has_memory_for_is_refused_in_one_line(folders: Folders) -> None:
    config = EngineConfig(
        model=str(folders("llama")), address="", served_model_name="", num_blocks=10**12
    )
    loaded = load_model(config, ops.choose("torch"))
    with pytest.raises(UnsupportedModelError, match=r"no memory for 1000000000000 blocks .* GiB$"):
        ModelRunner(loaded, config)
