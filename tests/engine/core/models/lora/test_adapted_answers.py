"""Answers with adapters: transformers' with merged weights, in any batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.lora import LoRARequest
from tests.engine.helpers.greedy_oracle import make_prompts
from tests.engine.helpers.lora.adapters import ALL_TARGETS, build_adapter, merged_model
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.tiny_model import build_tiny_model

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

NUM_TOKENS = 16
MAX_DIFFERENCE = 5e-5  # of logits of some 5: a merged weight is rounded, a sum of products is not
TARGETS = {
    "llama": ALL_TARGETS,
    "qwen2": ("q_proj", "v_proj"),
    "qwen3": ("k_proj", "gate_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),  # whose weights lie the other way
    "phi3": ("qkv_proj", "gate_up_proj", "o_proj"),
    "gemma3": ("q_proj", "down_proj"),
    "qwen3_moe": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "gpt_neox": ("query_key_value", "dense_4h_to_h"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Path]]]:
    """Of each family a model, and three adapters of it with different ranks."""
    root, built = tmp_path_factory.mktemp("adapted"), {}
    for family, targets in TARGETS.items():
        model = build_tiny_model(root / family, family, initializer_range=0.15)
        adapters = [
            build_adapter(root / f"{family}-{i}", model, targets, seed=i, rank=i + 2, size=0.15)
            for i in range(3)
        ]
        built[family] = (model, adapters)
    return built


FUSED = ("llama", "qwen2", "qwen3")
IMPLS = ("transformers", "fused")


def start(model: Path, **settings: Any) -> SteppedEngine:
    given: dict[str, Any] = {"enable_lora": True, "max_loras": 3, "model_impl": "transformers"}
    return SteppedEngine(model, keeps_logits=True, **given | settings)


def expected_logits(model: Any, prompt: list[int], answer: list[int]) -> Tensor:
    with torch.inference_mode():
        ids = torch.tensor([prompt + answer[:-1]])
        logits: Tensor = model(ids, use_cache=False).logits[0, len(prompt) - 1 :]
    return logits


@pytest.mark.parametrize(
    ("family", "impl"),
    [*((family, "transformers") for family in TARGETS), *((family, "fused") for family in FUSED)],
)
def test_several_adapters_beside_each_other_equal_merged_weights(
    family: str, impl: str, folders: dict[str, tuple[Path, list[Path]]]
) -> None:
    folder, adapters = folders[family]
    engine = start(folder, model_impl=impl)
    requests = [engine.adapter(i + 1, adapter) for i, adapter in enumerate(adapters)]
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        lora = (*requests, None)[number % 4]
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS, lora=lora)
        engine.step()
    engine.run()
    base = AutoModelForCausalLM.from_pretrained(folder)
    models = [*(merged_model(folder, adapter) for adapter in adapters), base]
    for number, prompt in enumerate(prompts):
        answer, logits = engine.tokens[str(number)], engine.logits[str(number)]
        expected = expected_logits(models[number % 4], prompt, answer)
        assert answer == expected.argmax(-1).tolist()
        assert (torch.stack(logits) - expected).abs().max() <= MAX_DIFFERENCE
        others = expected_logits(models[(number + 1) % 4], prompt, answer)
        assert (others - expected).abs().max() > 0.1  # else nothing was shown


@pytest.mark.parametrize("family", FUSED)
@pytest.mark.parametrize("impl", ["transformers", "fused"])
@pytest.mark.parametrize("chunk", [7, 256])
def test_logprobs_of_prompts_are_those_of_merged_weights(
    chunk: int, impl: str, family: str, folders: dict[str, tuple[Path, list[Path]]]
) -> None:
    folder, adapters = folders[family]
    engine = start(folder, model_impl=impl, max_num_batched_tokens=chunk)
    requests = loras(engine, adapters)
    prompt = [3 + 7 * number % 300 for number in range(40)]
    for number, lora in enumerate(requests):  # the same one: no prefix of it may be shared
        engine.add(str(number), prompt, max_tokens=2, prompt_logprobs=0, lora=lora)
        engine.step()
    engine.run()
    base = AutoModelForCausalLM.from_pretrained(folder)
    models = [*(merged_model(folder, adapter) for adapter in adapters), base]
    for number, model in enumerate(models):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
        expected = logits.log_softmax(-1)[range(39), prompt[1:]]
        scored = [entries[0] for entries in engine.prompt_logprobs[str(number)]]
        assert [token_id for token_id, _, _ in scored] == prompt[1:]
        found = torch.tensor([logprob for _, logprob, _ in scored])
        assert (found - expected).abs().max() <= MAX_DIFFERENCE


@pytest.fixture(scope="module")
def llama(folders: dict[str, tuple[Path, list[Path]]]) -> tuple[Path, list[Path]]:
    return folders["llama"]


@pytest.fixture(scope="module", params=IMPLS)
def impl(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(llama: tuple[Path, list[Path]], impl: str) -> Iterator[dict[str, list[Tensor]]]:
    """The logits of each prompt with its adapter, computed by itself."""
    folder, adapters = llama
    engine = start(folder, num_blocks=64, model_impl=impl)
    requests = loras(engine, adapters)
    for number, prompt in enumerate(make_prompts()):
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS, lora=requests[number % 4])
        engine.run()
    yield engine.logits


def loras(engine: SteppedEngine, adapters: list[Path]) -> list[LoRARequest | None]:
    return [*(engine.adapter(i + 1, adapter) for i, adapter in enumerate(adapters)), None]


def check_bits(engine: SteppedEngine, alone: dict[str, list[Tensor]]) -> None:
    for name, logits in alone.items():
        assert torch.equal(torch.stack(engine.logits[name]), torch.stack(logits)), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 5},
        {"runs_ahead": True, "async_scheduling": True},
        {"max_loras": 1},
        {"max_loras": 2, "max_num_seqs": 3},
    ],
    ids=str,
)
def test_bits_do_not_depend_on_who_else_is_in_the_batch(
    settings: dict[str, Any],
    llama: tuple[Path, list[Path]],
    alone: dict[str, list[Tensor]],
    impl: str,
) -> None:
    folder, adapters = llama
    engine = start(folder, **{"num_blocks": 64, "model_impl": impl} | settings)
    requests = loras(engine, adapters)
    for number, prompt in enumerate(make_prompts()):
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS, lora=requests[number % 4])
    engine.run()
    assert {end.finish_reason for end in engine.ends.values()} == {"length"}
    check_bits(engine, alone)


def test_bits_do_not_depend_on_preemptions(
    llama: tuple[Path, list[Path]], alone: dict[str, list[Tensor]], impl: str
) -> None:
    folder, adapters = llama
    engine = start(folder, num_blocks=64, enable_prefix_caching=False, model_impl=impl)
    requests = loras(engine, adapters)
    for number, prompt in enumerate(make_prompts()):
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS, lora=requests[number % 4])
    for _ in range(2):
        for _ in range(5):
            engine.step()
        engine.scheduler.preempt_all()
        assert not any(sequence.adapter for sequence in engine.scheduler.waiting)
    engine.run()
    assert engine.scheduler.totals.preemptions >= len(alone)
    check_bits(engine, alone)


def test_requests_without_an_adapter_have_the_bits_of_an_engine_without_adapters(
    llama: tuple[Path, list[Path]], alone: dict[str, list[Tensor]], impl: str
) -> None:
    engine = start(llama[0], num_blocks=64, enable_lora=False, model_impl=impl)
    prompts = make_prompts()
    engine.add("3", prompts[3], max_tokens=NUM_TOKENS)
    engine.run()
    assert torch.equal(torch.stack(engine.logits["3"]), torch.stack(alone["3"]))


def test_prefixes_are_shared_by_the_same_adapter_alone(
    llama: tuple[Path, list[Path]], impl: str
) -> None:
    folder, adapters = llama
    engine = start(folder, num_blocks=64, model_impl=impl)
    requests, prompt = loras(engine, adapters), make_prompts()[2]
    again = engine.adapter(9, adapters[0])  # the same files under another number
    for name, lora, num_cached in (
        ("first", requests[0], 0),
        ("second", requests[1], 0),
        ("base", None, 0),
        ("first again", requests[0], 32),
        ("other number", again, 32),
        ("base again", None, 32),
    ):
        engine.add(name, prompt, max_tokens=NUM_TOKENS, lora=lora)
        engine.run()
        assert engine.ends[name].num_cached_tokens == num_cached, name
    for name in ("first again", "other number"):
        assert torch.equal(torch.stack(engine.logits[name]), torch.stack(engine.logits["first"]))
    assert engine.tokens["second"] != engine.tokens["first"] != engine.tokens["base"]


def test_an_abort_leaves_the_others_as_they_are(
    llama: tuple[Path, list[Path]], alone: dict[str, list[Tensor]], impl: str
) -> None:
    folder, adapters = llama
    engine = start(folder, num_blocks=64, model_impl=impl)
    requests = loras(engine, adapters)
    for number, prompt in enumerate(make_prompts()):
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS, lora=requests[number % 4])
    for _ in range(5):
        engine.step()
    engine.scheduler.abort("me", ["1", "4"])
    engine.run()
    left = {name: logits for name, logits in alone.items() if name not in ("1", "4")}
    check_bits(engine, left)


@pytest.mark.parametrize("settings", [{"quantization": "int8"}, {"dtype": "bfloat16"}], ids=str)
def test_rounded_models_take_adapters_too(
    settings: dict[str, Any], llama: tuple[Path, list[Path]], impl: str
) -> None:
    folder, adapters = llama
    engine = start(folder, num_blocks=64, model_impl=impl, **settings)
    prompt = make_prompts()[0]
    engine.add("r", prompt, max_tokens=NUM_TOKENS, lora=engine.adapter(1, adapters[0]))
    engine.run()
    expected = expected_logits(merged_model(folder, adapters[0]), prompt, engine.tokens["r"])
    difference = (torch.stack(engine.logits["r"]) - expected).std() / expected.std()
    assert difference < 0.1


def test_references_in_torch_add_adapters_too(llama: tuple[Path, list[Path]]) -> None:
    folder, adapters = llama
    engine = start(folder, num_blocks=64, attn_backend="torch")
    prompt = make_prompts()[0]
    engine.add("r", prompt, max_tokens=NUM_TOKENS, lora=engine.adapter(1, adapters[0]))
    engine.run()
    expected = expected_logits(merged_model(folder, adapters[0]), prompt, engine.tokens["r"])
    assert (torch.stack(engine.logits["r"]) - expected).abs().max() <= MAX_DIFFERENCE
