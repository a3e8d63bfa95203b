import math
from dataclasses import fields
from typing import Any

import pytest

from engine.client.absent_args import WITHOUT_MEANING, AbsentFeatures
from engine.client.args import _INTEGERS, _SECONDS_AND_RATES, AsyncEngineArgs, EngineArgs
from engine.errors import ValidationError

PRESENT = EngineArgs.__annotations__
ALL_ONE = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}


def test_unknown_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_num_seq"):
        AsyncEngineArgs(model="m", max_num_seq=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trust_remote_code", True),
        ("dtype", "int4"),
        ("load_format", "pt"),
        ("scheduling_policy", "random"),
        ("device", "tpu"),
        ("max_num_seqs", 0),
        ("max_model_len", -2),
        ("gpu_memory_utilization", 1.5),
        ("pace", -1),
        ("pace", math.nan),
        ("max_step_seconds", math.nan),
        ("max_step_seconds", -1),
        ("watchdog_seconds", math.inf),
        ("max_queue_seconds", 0),
        ("shutdown_timeout", -1),
        ("long_prefill_token_threshold", -5),
        ("long_prefill_token_threshold", None),
        ("threads", -1),
        ("threads", "2"),
        ("num_gpu_blocks_override", 1.5),
        ("max_num_seqs", "8"),
        ("max_num_batched_tokens", 10**9),
        ("max_num_batched_tokens", True),
        ("max_model_len", 1),
        ("max_model_len", "auto"),
        ("max_logprobs", -5),
        ("logprobs_mode", "raw"),
        ("logits_processors", "a:B"),
        ("logits_processors", ["a.B"]),
        ("logits_processors", [5]),
        ("logits_processors", [type("Made", (), {"__qualname__": "f.<locals>.Made"})]),
        ("stream_interval", 2.5),
        ("seed", "x"),
        ("log_level", "CHATTY"),
        ("attn_backend", "flash"),
        ("model_impl", "fuzed"),
        ("prefix_caching_hash_algo", "md5x"),
        ("enable_prefix_caching", "no"),
        ("batch_invariant", "no"),
        ("gpu_memory_utilization", "all"),
        ("served_model_name", 5),
        ("tokenizer", 5),
        ("model", ""),
    ],
)
def test_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        AsyncEngineArgs(**({"model": "m"} | {name: value}))
    assert caught.value.parameter == name


def test_the_error_of_a_wrong_choice_lists_the_right_ones() -> None:
    with pytest.raises(ValidationError, match="must be one of auto, transformers, fused, got"):
        AsyncEngineArgs(model="m", model_impl="fuzed")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 2),
        ("pipeline_parallel_size", 2),
        ("engine_use_ray", True),
        ("quantization", "awq"),
        ("kv_cache_dtype", "fp8"),
        ("enable_chunked_prefill", False),
        ("skip_tokenizer_init", True),
        ("block_size", 32),
        ("block_size", 7),
        ("generation_config", "elsewhere"),
        ("scheduler_reserve_full_isl", False),
        ("attention_backend", "FLASHINFER"),
        ("kv_offloading_size", 4.0),
        ("spec_method", "ngram"),
        ("watermark", 0.1),
        ("tokenizer_revision", "v9"),
        ("fully_sharded_loras", True),
        ("cpu_offload_gb", 2),
        ("speculative_config", {"method": "ngram"}),
        ("hf_overrides", {"rope_theta": 1}),
        ("limit_mm_per_prompt", {"image": 2}),
        ("distributed_executor_backend", "ray"),
        ("convert", "classify"),
    ],
)
def test_feature_that_is_not_there_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(NotImplementedError, match=name):
        AsyncEngineArgs(model="m", **{name: value})


def test_every_name_of_vllm_is_accepted_at_its_default() -> None:
    for name, default in vars(AbsentFeatures()).items():
        AsyncEngineArgs(**({"model": "m"} | {name: default}))


def test_no_refusal_speaks_of_another_engine() -> None:
    with pytest.raises(NotImplementedError) as caught:
        AsyncEngineArgs("m", tensor_parallel_size=2)
    assert str(caught.value) == "tensor_parallel_size=2 is not implemented"


def test_what_asks_for_nothing_that_is_missing_is_accepted() -> None:
    AsyncEngineArgs(
        "m",
        enable_lora=False,
        enable_sleep_mode=True,
        sleep_mode_backend="other",
        max_lora_rank=64,
        swap_space=0,
        cpu_offload_gb=0,
        speculative_config=None,
        compilation_config={"level": 3},
        hf_overrides={},
        limit_mm_per_prompt={},
        disable_custom_all_reduce=True,
        distributed_executor_backend="mp",
        runner="generate",
        block_size=16,
        prefix_caching_hash_algo="sha256",
        max_logprobs=-1,
        seed=-1,
        generation_config="vllm",
        optimization_level=3,
        max_model_len=-1,
        spec_tokens=0,
    )


ABSENT = [each.name for each in fields(AbsentFeatures) if each.name not in PRESENT]


@pytest.mark.parametrize("name", ABSENT)
def test_absent_feature_is_refused_by_name_or_has_no_meaning(name: str) -> None:
    given: dict[str, Any] = {name: "something else"}
    try:
        AsyncEngineArgs("m", **given)
    except NotImplementedError as error:
        assert name in str(error)
    else:
        assert name in WITHOUT_MEANING


def test_every_number_has_its_limits() -> None:
    numbers = {each.name for each in fields(AsyncEngineArgs) if type(each.default) in (int, float)}
    numbers -= {*ABSENT, *ALL_ONE}
    assert numbers <= {*_INTEGERS, *_SECONDS_AND_RATES}


def test_relics_of_earlier_versions_are_accepted() -> None:
    AsyncEngineArgs("m", disable_log_requests=True, max_log_len=10, worker_use_ray=False)


def test_config_has_the_values_under_its_own_names() -> None:
    args = AsyncEngineArgs(
        "models/tiny",
        dtype="half",
        num_gpu_blocks_override=7,
        max_num_seqs=3,
        pace=60,
        served_model_name=["tiny", "alias"],
        logprobs_mode="raw_logits",
        logits_processors=[AsyncEngineArgs],
    )
    config = args.create_engine_config("ipc:///tmp/x")
    assert config.model.endswith("/models/tiny") and config.model.startswith("/")
    assert (config.dtype, config.num_blocks, config.max_num_seqs) == ("float16", 7, 3)
    assert (config.pace, config.served_model_name) == (60, "tiny")
    assert config.logprobs_mode == "raw_logits"
    assert config.logits_processors == ["engine.client.args:AsyncEngineArgs"]
    assert config.address == "ipc:///tmp/x"


def test_what_is_not_given_is_the_config_s_default() -> None:
    config = AsyncEngineArgs("m").create_engine_config("ipc:///tmp/x")
    assert (config.block_size, config.max_num_seqs, config.enable_prefix_caching) == (16, 64, True)


def test_engine_args_know_the_same_names() -> None:
    assert {each.name for each in fields(EngineArgs)} == {
        each.name for each in fields(AsyncEngineArgs)
    }
    assert isinstance(AsyncEngineArgs("m"), EngineArgs)


def test_a_context_of_minus_one_is_what_model_and_cache_allow() -> None:
    assert AsyncEngineArgs("m", max_model_len=-1).create_engine_config("i").max_model_len is None


def test_model_is_served_under_the_name_it_was_given() -> None:
    assert AsyncEngineArgs("org/tiny").model_name == "org/tiny"
