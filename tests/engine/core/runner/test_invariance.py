"""Batch invariance: the probe finds what padding it takes, and then no bit depends on company.

Tokens and logprobs are compared with `==`: of the same request alone, in a crowd, in other chunks,
from the prefix cache, computed again after a preemption, and ended by another engine.
"""

import dataclasses
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine import demo_model
from engine.config import EngineConfig
from engine.core.models.loader import LoadedModel, load_model
from engine.core.models.modules.linear import PackedLinear
from engine.core.ops import library as ops
from engine.core.runner.invariance import Layer, RowProbe
from engine.core.runner.model_runner import ModelRunner
from engine.core.tensors.batch import Batch
from engine.errors import UnsupportedModelError
from tests.engine.helpers.stepped_engine import Logprobs, SteppedEngine
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # name: (family, settings)
    "llama": ("llama", {}),  # fused, as the next two
    "llama in bfloat16": ("llama", {"dtype": "bfloat16"}),
    "llama in 8 bits": ("llama", {"quantization": "int8", "kv_cache_dtype": "int8"}),
    "llama in 4 bits": ("llama", {"quantization": "int4"}),
    "gpt2": ("gpt2", {}),
    "gpt2 in 8 bits": ("gpt2", {"quantization": "int8"}),
    "gpt2 in 4 bits": ("gpt2", {"quantization": "int4"}),
    "gemma2": ("gemma2", {}),
    "qwen3_moe": ("qwen3_moe", {}),  # padded: for experts
}
BUDGETS = [5, 7, 16, 33, 64, 512]
PROMPT_LENGTHS = (7, 3, 70, 1, 17, 33, 12, 48)
GROWING_LENGTHS = (15, 31, 14, 13, 15, 30)  # answers of these soon want two blocks more
NUM_TOKENS = 20

Folders = Callable[[str], Path]
Answer = tuple[list[int], Logprobs]
AnswersAlone = Callable[[str], list[Answer]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made: dict[str, Path] = {"demo": demo_model()}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = build_tiny_model(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


# ---- the probe -----------------------------------------------------------------------------------


class Fickle(nn.Module):
    """Its rows are a few bits off, by their number, unless that is a multiple of `multiple`."""

    def __init__(self, multiple: int, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.multiple = multiple
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = rows if self.inner is None else self.inner(rows)
        return out * (1 + rows.shape[-2] % self.multiple * 2**-20)


def _is_linear(module: Any) -> bool:
    return isinstance(module, nn.Linear | PackedLinear)


def load(folder: Path, **settings: Any) -> tuple[LoadedModel, EngineConfig]:
    """As modules of transformers, which can be replaced, unless `settings` say otherwise."""
    config = EngineConfig(
        model=str(folder),
        address="",
        served_model_name="",
        num_blocks=8,
        **{"model_impl": "transformers"} | settings,
    )
    return load_model(config, ops.choose("auto")), config


def make_fickle(loaded: LoadedModel, multiple: int) -> None:
    model: Any = loaded.model
    for layer in model.model.layers:
        layer.mlp.act_fn = Fickle(multiple)


@pytest.mark.parametrize("multiple", [1, 2, 4, 8, 16])
def test_a_layer_depends_on_its_rows_at_all_but_some_multiples(multiple: int) -> None:
    layer = Layer(Fickle(multiple), torch.zeros(1, 5, 8), row_dim=1)
    alike = [m for m in (1, 2, 4, 8, 16, 32) if not layer.depends_on_rows(m, max_rows=512)]
    assert alike == [m for m in (1, 2, 4, 8, 16, 32) if m % multiple == 0]


def test_a_layer_whose_rows_depend_on_their_place_is_found() -> None:
    class Placed(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows + torch.arange(rows.shape[1])[:, None] % 4 * 2**-20

    assert Layer(Placed(), torch.zeros(1, 5, 8), row_dim=1).depends_on_rows(1, max_rows=64)


@needs_kernels
def test_the_probe_finds_the_smallest_multiple_and_says_so(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    loaded, config = load(folders("llama"))
    make_fickle(loaded, 16)
    with caplog.at_level(logging.INFO, logger="engine.core.runner.invariance"):
        found = ModelRunner(loaded, config).invariance
    assert (found.row_multiple, found.is_proven) == (16, True)
    assert 1 <= found.num_dependent <= found.num_layers == 7  # 4 projections, 2 of the MLP, ...
    assert loaded.context.row_multiple == 16
    (record,) = caplog.records
    assert "with multiples of 16 answers are alike in any batch" in record.getMessage()


@needs_kernels
def test_what_no_layer_shows_alone_the_whole_model_shows(folders: Folders) -> None:
    """A fickle module with parts is no leaf: only reading a text in chunks finds it."""
    loaded, config = load(folders("llama"))
    model: Any = loaded.model
    model.model.norm = Fickle(32, model.model.norm)
    assert ModelRunner(loaded, config).invariance.row_multiple == 32


def test_where_padding_does_not_help_the_log_promises_nothing(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    loaded, config = load(folders("llama"))
    make_fickle(loaded, 1000)
    found = ModelRunner(loaded, config).invariance
    assert (found.row_multiple, found.is_proven) == (16, False)
    assert "padding does not help" in caplog.text


@pytest.mark.parametrize("share", [1 / 2, 1 / 200])
@pytest.mark.parametrize("batch_invariant", [True, False])
def test_a_model_that_keeps_a_state_outside_attention_is_refused(
    batch_invariant: bool, share: float, folders: Folders
) -> None:
    class Shift(nn.Module):
        """Each token gets a share of the one before, which another chunk does not know."""

        def forward(self, rows: Tensor) -> Tensor:
            return rows + functional.pad(rows, (0, 0, 1, -1)) * share

    loaded, config = load(folders("llama"), batch_invariant=batch_invariant, dtype="float32")
    model: Any = loaded.model
    for layer in model.model.layers:
        layer.mlp.act_fn = Shift()
    with pytest.raises(UnsupportedModelError, match="outside attention"):
        ModelRunner(loaded, config)


@pytest.mark.parametrize("batch_invariant", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_a_model_whose_positions_begin_anew_in_each_chunk_is_refused(
    model_impl: str, dtype: str, batch_invariant: bool, folders: Folders
) -> None:
    settings = {"model_impl": model_impl, "batch_invariant": batch_invariant}
    loaded, config = load(folders("llama"), dtype=dtype, **settings)

    def from_zero(batch: Batch) -> Batch:
        return dataclasses.replace(
            batch, positions=(batch.positions - batch.positions[0]).clamp(min=0)
        )

    class Counting(ModelRunner):
        def forward(self, batch: Batch) -> Tensor:
            return super().forward(from_zero(batch))

    with pytest.raises(UnsupportedModelError, match="outside attention"):
        Counting(loaded, config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_without_batch_invariance_a_sound_model_passes_the_same_check(
    dtype: str, folders: Folders
) -> None:
    for family in ("gpt2", "qwen3_moe"):
        SteppedEngine(folders(family), batch_invariant=False, dtype=dtype)


def test_on_another_device_the_text_is_read_there(folders: Folders) -> None:
    """Of a device without memory only the place of what is sent to it can be seen."""
    loaded, config = load(folders("llama"))
    config = ModelRunner(loaded, config).config
    elsewhere = dataclasses.replace(loaded, device=torch.device("meta"))
    logits = torch.randn(512, 384)
    places: list[str] = []

    def forward(batch: Batch) -> Tensor:
        tensors = [batch.input_ids, batch.positions, batch.slot_mapping, batch.logits_rows]
        places.extend(tensor.device.type for tensor in tensors)
        first = batch.lens[0][1] - batch.num_tokens
        return logits[first : first + batch.num_tokens]

    RowProbe(elsewhere, config, forward).check()
    assert set(places) == {"meta"}


def test_without_batch_invariance_no_layer_is_probed_and_no_row_padded(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"), batch_invariant=False)
    assert engine.runner.invariance.num_layers == 0
    assert engine.runner.loaded.context.row_multiple == 1


def test_every_layer_shape_is_probed_once(folders: Folders) -> None:
    loaded, config = load(folders("llama"), batch_invariant=False)
    runner = ModelRunner(loaded, config)
    layers = RowProbe(loaded, runner.config, runner.forward).find_layers()
    linear: list[Any] = [layer.module for layer in layers if _is_linear(layer.module)]
    shapes = {tuple(module.weight.shape) for module in linear}
    assert shapes == {(64, 64), (32, 64), (96, 64), (64, 96), (384, 64)}
    assert {type(layer.module).__name__ for layer in layers} >= {"LlamaRMSNorm", "SiLUActivation"}


# ---- what it brings ------------------------------------------------------------------------------


class FixedBudget:
    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def num_tokens(self, num_answers: int, num_waiting: int) -> int:
        return self._num_tokens


class RandomBudget:
    """Another chunk size at each look, as on a machine whose speed varies."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def num_tokens(self, num_answers: int, num_waiting: int) -> int:
        return self._random.choice([1, 2, 3, 5, 8, 13, 16, 21, 34, 55, 89, 144, 512])


def make_prompts(lengths: Iterable[int] = PROMPT_LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 380, (n,), generator=generator).tolist() for n in lengths]


def ask(
    engine: SteppedEngine, number: int, prompt: list[int], name: str = "", **settings: Any
) -> None:
    """A seeded random answer, with logprobs, so that every bit of its logits counts."""
    params = {"temperature": 1.0, "top_p": 0.95, "seed": number, "logprobs": 3} | settings
    engine.add(name or str(number), prompt, max_tokens=NUM_TOKENS, **params)


def answer(engine: SteppedEngine, name: str) -> Answer:
    assert len(engine.tokens[name]) == NUM_TOKENS
    return engine.tokens[name], engine.logprobs[name]


def start(folders: Folders, model: str, **settings: Any) -> SteppedEngine:
    family, settings_of_model = MODELS[model]
    return SteppedEngine(folders(family), **settings_of_model, **settings)


def answer_alone(folder: Path, prompts: list[list[int]], **settings: Any) -> list[Answer]:
    """Each by itself, its prompt in one chunk, without the cache of those before it."""
    engine = SteppedEngine(
        folder, max_step_seconds=0, enable_prefix_caching=False, num_blocks=64, **settings
    )
    for number, prompt in enumerate(prompts):
        ask(engine, number, prompt)
        engine.run()
    return [answer(engine, str(number)) for number in range(len(prompts))]


def answer_together(engine: SteppedEngine, prompts: list[list[int]]) -> list[Answer]:
    """Half at once, the others while these run."""
    for number, prompt in enumerate(prompts):
        if number == len(prompts) // 2:
            for _ in range(3):
                engine.step()
        ask(engine, number, prompt)
    engine.run()
    return [answer(engine, str(number)) for number in range(len(prompts))]


@pytest.fixture(scope="module")
def alone(folders: Folders) -> AnswersAlone:
    known: dict[str, list[Answer]] = {}

    def answers(model: str) -> list[Answer]:
        if model not in known:
            family, settings = MODELS[model]
            known[model] = answer_alone(folders(family), make_prompts(), **settings)
        return known[model]

    return answers


@needs_kernels
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_alike_alone_and_together_in_chunks_of_any_size(
    model: str, folders: Folders, alone: AnswersAlone
) -> None:
    engine = start(folders, model, num_blocks=512)
    assert engine.runner.invariance.is_proven
    for budget in BUDGETS:
        engine.scheduler.prompt_budget = FixedBudget(budget)  # type: ignore[assignment]
        engine.scheduler.blocks.reset_cache()
        engine.tokens.clear()
        engine.logprobs.clear()
        assert answer_together(engine, make_prompts()) == alone(model), f"in chunks of {budget}"


@needs_kernels
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_alike_preempted_and_in_chunks_whose_size_depends_on_the_clock(
    model: str, folders: Folders
) -> None:
    prompts = make_prompts(GROWING_LENGTHS)
    family, settings = MODELS[model]
    expected = answer_alone(folders(family), prompts, **settings)
    engine = start(folders, model, num_blocks=8)
    assert answer_together(engine, prompts) == expected
    assert engine.scheduler.totals.preemptions > 0
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    engine.scheduler.prompt_budget = RandomBudget(seed)  # type: ignore[assignment]
    engine.scheduler.blocks.reset_cache()
    engine.tokens.clear()
    engine.logprobs.clear()
    assert answer_together(engine, prompts) == expected


@needs_kernels
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_alike_from_the_prefix_cache(
    model: str, folders: Folders, alone: AnswersAlone
) -> None:
    prompt = make_prompts()[2]
    engine = start(folders, model)
    for name in ("cold", "cached"):
        ask(engine, 2, prompt, name)
        engine.run()
    assert engine.ends["cached"].num_cached_tokens == 64
    assert answer(engine, "cold") == answer(engine, "cached") == alone(model)[2]


@needs_kernels
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_alike_begun_in_one_engine_and_ended_in_another(
    model: str, folders: Folders, alone: AnswersAlone
) -> None:
    """As after the death of a core: the next one reads prompt and tokens so far as one text."""
    engine = start(folders, model)
    expected = []
    for number, (prompt, (tokens, logprobs)) in enumerate(
        zip(make_prompts(), alone(model), strict=True)
    ):
        ask(engine, number, prompt, resume_token_ids=tokens[: 2 * number + 1])
        expected.append((tokens[2 * number + 1 :], logprobs[2 * number + 1 :]))
    engine.run()
    names = map(str, range(len(expected)))
    assert [(engine.tokens[name], engine.logprobs[name]) for name in names] == expected


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@needs_kernels
def test_with_two_threads_the_model_reads_alike_in_any_chunks(
    folders: Folders, two_threads: None
) -> None:
    assert SteppedEngine(folders("llama")).runner.invariance.is_proven


@needs_kernels
@pytest.mark.slow  # threads that wait for each other, on a machine where others run
@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("demo", "float32")])
def test_answers_are_alike_with_two_threads(
    family: str, dtype: str, folders: Folders, two_threads: None
) -> None:
    expected = answer_alone(folders(family), make_prompts(), dtype=dtype)
    engine = SteppedEngine(folders(family), num_blocks=64, dtype=dtype)
    engine.scheduler.prompt_budget = FixedBudget(33)  # type: ignore[assignment]
    assert answer_together(engine, make_prompts()) == expected


@needs_kernels
def test_sixteen_seeded_streams_each_equal_their_solo_run_bit_for_bit(folders: Folders) -> None:
    check_streams(folders("llama"), 16)


@needs_kernels
@pytest.mark.slow
def test_a_hundred_seeded_streams_each_equal_their_solo_run_bit_for_bit(
    folders: Folders,
) -> None:
    check_streams(folders("demo"), 100)


def check_streams(folder: Path, num_streams: int) -> None:
    prompts = make_prompts(islice(cycle(PROMPT_LENGTHS), num_streams))
    engine = SteppedEngine(folder, max_num_seqs=num_streams, num_blocks=num_streams * 6)
    assert answer_together(engine, prompts) == answer_alone(folder, prompts)


@needs_kernels
def test_without_padding_the_answers_would_differ(folders: Folders) -> None:
    """Where torch's kernels depend on rows, as in experts, these tests can see it."""
    folder = folders("qwen3_moe")
    expected = answer_alone(folder, make_prompts(), batch_invariant=False)
    engine = SteppedEngine(folder, num_blocks=64, batch_invariant=False)
    probed = SteppedEngine(folder, num_blocks=64).runner.invariance
    if probed.row_multiple == 1:
        pytest.skip("on this machine no kernel depends on the number of rows")
    assert answer_together(engine, make_prompts()) != expected
