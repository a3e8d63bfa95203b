"""Engine arguments from a command line: each flag, what it reads, and what it refuses."""

import argparse
from dataclasses import fields
from typing import Any

import pytest

from engine.client.absent_args import AbsentFeatures
from engine.client.args import AsyncEngineArgs, EngineArgs
from engine.client.cli_args import integer
from engine.errors import ValidationError

PRESENT = set(EngineArgs.__annotations__) - {"_"}


def read(*flags: str, model: str = "m") -> AsyncEngineArgs:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.set_defaults(model=model)
    return AsyncEngineArgs.from_cli_args(parser.parse_args(flags))


def test_no_flag_is_the_default() -> None:
    assert read() == AsyncEngineArgs("m")
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert EngineArgs.from_cli_args(parser.parse_args(["--model", "m"])) == EngineArgs("m")


def test_every_argument_has_a_flag() -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    names = set(vars(parser.parse_args([])))
    assert names == {each.name for each in fields(AsyncEngineArgs)}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--max-num-seqs 8 --gpu-memory-utilization 0.5", {"max_num_seqs": 8}),
        ("--max-num-batched-tokens 1k", {"max_num_batched_tokens": 1000}),
        ("--max-model-len 2K", {"max_model_len": 2048}),
        ("--max-model-len auto", {"max_model_len": None}),
        ("--max-model-len -1", {"max_model_len": -1}),
        ("--dtype half --device cpu", {"dtype": "half", "device": "cpu"}),
        ("--enforce-eager --no-enable-prefix-caching", {"enforce_eager": True}),
        ("--no-batch-invariant", {"batch_invariant": False}),
        ("--served-model-name one two", {"served_model_name": ["one", "two"]}),
        ("--seed None --pace 2.5", {"seed": None, "pace": 2.5}),
        ("-tp 1 -pp 1 -dp 1 -q int8", {"quantization": "int8"}),
        ("--no-enable-lora --swap-space 2", {"enable_lora": False, "swap_space": 2}),
        ("--enable-lora --max-loras 4", {"enable_lora": True, "max_loras": 4}),
        ('--compilation-config {"level":3}', {"compilation_config": {"level": 3}}),
        ("--no-disable-hybrid-kv-cache-manager", {"disable_hybrid_kv_cache_manager": False}),
        ("--disable-hybrid-kv-cache-manager", {"disable_hybrid_kv_cache_manager": True}),
        ("--device-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
        ("--optimization-level 3", {"optimization_level": 3}),
        ("--enable-log-requests --max-log-len 9", {"enable_log_requests": True}),
    ],
)
def test_flags_are_read(flags: str, expected: dict[str, Any]) -> None:
    args = read(*flags.split())
    assert {name: getattr(args, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ("-tp 2", NotImplementedError),
        ("--enable-lora --max-loras 2 --max-cpu-loras 1", ValidationError),
        ("--max-lora-rank 0", ValidationError),
        ("--worker-use-ray", NotImplementedError),
        ('--speculative-config {"method":"ngram"}', NotImplementedError),
        ("--max-num-seqs 0", ValidationError),
        ("--gpu-memory-utilization 2", ValidationError),
    ],
)
def test_values_are_refused_as_in_a_program(flags: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(*flags.split())


@pytest.mark.parametrize(
    "flags",
    ["--max-num-seqs many", "--dtype int4", "--pace fast", "--max-model-len 1.5K", "--no-x"],
)
def test_what_is_no_value_ends_the_program(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(*flags.split())
    assert flags.split()[0] in capsys.readouterr().err


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ValidationError, match="model must be"):
        read(model="")


def test_async_args_join_a_parser_that_has_the_others() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert "enable_log_requests" not in vars(parser.parse_args([]))
    AsyncEngineArgs.add_cli_args(parser, async_args_only=True)
    given = parser.parse_args(["--model", "m", "--enable-log-requests", "--no-engine-use-ray"])
    assert AsyncEngineArgs.from_cli_args(given) == AsyncEngineArgs("m", enable_log_requests=True)


def test_help_shows_what_has_an_effect() -> None:
    text = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser()).format_help()
    assert "--max-num-seqs" in text and "--pace" in text
    for name in {each.name for each in fields(AbsentFeatures)} - PRESENT:
        assert f"--{name.replace('_', '-')} " not in text, name


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2G", 1 << 31)]
)
def test_numbers_have_units(text: str, number: int) -> None:
    assert integer(text) == number
