"""Which ops are chosen, the cache's layout, and the references against torch's own attention."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from csrc import build
from engine.core.ops import library as ops
from engine.core.ops.reference import paged_attention_reference, store_kv_reference
from engine.core.tensors.kv_cache import allocate_cache
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.cuda_kernels import needs_cuda_kernels


def test_the_reference_equals_scaled_dot_product_attention() -> None:
    torch.manual_seed(0)
    length, heads, kv_heads, width = 37, 6, 2, 8
    key_cache = allocate_cache(5, 16, kv_heads, width, torch.float32, is_key=True)
    value_cache = allocate_cache(5, 16, kv_heads, width, torch.float32, is_key=False)
    keys, values = torch.randn(2, length, kv_heads, width)
    queries, out = torch.randn(length, heads, width), torch.empty(length, heads, width)
    table = torch.tensor([[4, 0, 3]], dtype=torch.int32)
    places = torch.arange(length)
    slots = table[0, places // 16].long() * 16 + places % 16
    store_kv_reference(keys, values, key_cache, value_cache, slots)
    bounds, lengths = torch.tensor([0, length]), torch.tensor([length])
    paged_attention_reference(
        queries, key_cache, value_cache, table, bounds, lengths, out, 0.3, 0, 0.0, None
    )
    q, k, v = (x.transpose(0, 1) for x in (queries, keys, values))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(out, expected.transpose(0, 1))


def test_the_cache_lies_as_csrc_reads_it() -> None:
    keys = allocate_cache(3, 16, 2, 8, torch.bfloat16, is_key=True)
    values = allocate_cache(3, 16, 2, 8, torch.bfloat16, is_key=False)
    assert keys.shape == values.shape == (3, 16, 2, 8)
    assert keys.stride() == (256, 1, 128, 16)  # [block][head][dim][token]
    assert values.stride() == (256, 8, 128, 1)  # [block][head][token][dim]
    assert not keys.any() and not values.any()


def test_a_backend_is_chosen_by_name() -> None:
    assert ops.choose("torch") is ops.REFERENCE
    assert ops.choose("auto").name == ("cpu" if ops.load_library() else "torch")
    with pytest.raises(ValueError, match="'fast' is none of auto, cpu, torch"):
        ops.choose("fast")
    with pytest.raises(ValueError, match="'varlen' needs a GPU"):
        ops.choose("varlen")


def test_on_a_gpu_the_ops_are_those_of_cuda_where_they_can_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(build, "build_cuda", lambda: None)
    monkeypatch.setattr(ops, "load_cuda_library", ops.load_cuda_library.__wrapped__)
    assert ops.choose("auto", device) is ops.choose("varlen", device) is ops.REFERENCE
    with pytest.raises(ValueError, match="'cpu' was asked for, but the model runs on a GPU"):
        ops.choose("cpu", device)


@needs_cuda_kernels
def test_what_cuda_has_not_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(ops, "load_cuda_library", lambda: True)
    chosen = ops.choose("auto", torch.device("cuda"))
    assert chosen.name == "cuda" and chosen.store_kv is torch.ops.parley_cuda.store_kv
    assert chosen.linear is ops.REFERENCE.linear
    assert ops.choose("torch", torch.device("cuda")) is ops.REFERENCE


def test_an_older_gpu_gets_the_reference_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(ops, "load_cuda_library", lambda: True)
    assert ops.choose("auto", torch.device("cuda")) is ops.REFERENCE
    assert "needs Ampere or newer, and this GPU is 7.5" in caplog.text


def test_without_a_compiler_auto_falls_back_and_cpu_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "build", lambda: None)
    monkeypatch.setattr(ops, "load_library", ops.load_library.__wrapped__)
    assert ops.choose("auto") is ops.REFERENCE
    with pytest.raises(ValueError, match="csrc could not be built"):
        ops.choose("cpu")


@needs_kernels
def test_the_log_names_the_cpu_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ops.choose("cpu")
    assert f"CPU level {torch.ops.parley.cpu_level()}" in caplog.text


@needs_kernels
@pytest.mark.parametrize(
    ("capability", "wanted", "is_warned"),
    [("AVX512", "", True), ("AVX2", "", True), ("AVX2", "baseline", False), ("DEFAULT", "", False)],
)
def test_kernels_that_the_compiler_left_out_are_a_warning(
    capability: str,
    wanted: str,
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PARLEY_CPU_LEVEL", wanted)
    monkeypatch.setattr(torch.ops.parley, "cpu_level", lambda: "baseline")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    ops.choose("cpu")
    assert ("only g++ compiles the others" in caplog.text) == is_warned


@needs_kernels
@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_a_cpu_level_that_the_machine_lacks_is_reported_when_ops_are_chosen(backend: str) -> None:
    program = (
        "from engine.core.ops import library as ops\n"
        f"try: ops.choose({backend!r})\n"
        "except ValueError as error: print(error)"
    )
    environment = {**os.environ, "PARLEY_CPU_LEVEL": "sse9"}  # read once in a process
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("PARLEY_CPU_LEVEL is sse9, this machine has"), done.stderr
    assert done.stdout.endswith(" baseline\n")
