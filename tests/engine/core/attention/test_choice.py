"""Which attention backend a model gets, and that a missing one is named in a clear line."""

import dataclasses
import logging
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.attention import choice as attention_choice
from engine.core.attention.choice import AttentionNeeds, choose_attention, has_distribution
from engine.core.attention.paged import LayerShape
from engine.core.ops import library as ops
from tests.engine.helpers.attention_cases import varlen

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
BUILT = dataclasses.replace(ops.REFERENCE, name="cuda")
LLAMA = AttentionNeeds(torch.bfloat16, frozenset({(128, 128)}))


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(model="m", address="a", served_model_name="m", **changes)


class Machine:
    """A GPU that is not there, and what is installed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.installed: set[str] = set()
        self.capability = (9, 0)
        self.page_size: int | None = 256
        self.is_right = True
        self.widths = {64, 128, 256}  # of which csrc/cuda has a kernel for single queries
        patch.setattr(attention_choice, "has_distribution", self.installed.__contains__)
        patch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
        patch.setattr(attention_choice, "find_page_size", lambda *args: self.page_size)
        patch.setattr(attention_choice, "is_right", lambda *args: self.is_right)
        library = SimpleNamespace(can_decode=lambda width, page_size: width in self.widths)
        patch.setattr(torch.ops, "parley_cuda", library)
        patch.setattr(torch, "__version__", "2.13.0")
        fake = SimpleNamespace(varlen_attn_out=varlen)
        patch.setitem(sys.modules, "torch.nn.attention.varlen", fake)

    def install(self, distribution: str) -> None:
        self.installed.add(distribution)
        fake = SimpleNamespace(flash_attn_varlen_func=print)
        module = "flash_attn.cute" if distribution == "flash-attn-4" else "flash_attn"
        self._patch.setitem(sys.modules, "flash_attn", fake)
        self._patch.setitem(sys.modules, module, fake)

    def choose(self, needs: AttentionNeeds = LLAMA, wanted: str = "auto", **changes: Any) -> Any:
        return choose_attention(config(attn_backend=wanted, **changes), needs, BUILT, GPU)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_on_a_cpu_it_is_the_op() -> None:
    chosen = choose_attention(config(), LLAMA, ops.REFERENCE, CPU)
    assert (chosen.name, chosen.page_size) == ("torch", 16)


def test_flash_attention_comes_first_and_is_told_apart_by_its_distribution(
    machine: Machine,
) -> None:
    machine.widths = set()
    assert (machine.choose().name, machine.choose().page_size) == ("varlen", 256)
    machine.install("flash-attn")
    assert (machine.choose().name, machine.choose().page_size) == ("flash_attn 2", 256)
    machine.install("flash-attn-4")
    assert (machine.choose().name, machine.choose().page_size) == ("flash_attn 4", 128)


def test_single_queries_are_our_own_kernels_where_it_can(machine: Machine) -> None:
    assert machine.choose().name == "cuda, prompts varlen"
    machine.install("flash-attn-4")
    chosen = machine.choose()
    assert (chosen.name, chosen.page_size) == ("cuda, prompts flash_attn 4", 128)
    assert chosen.reads_whole_pages
    wide = dataclasses.replace(LLAMA, head_dims=frozenset({(128, 128), (96, 96)}))
    assert machine.choose(wide).name == "flash_attn 4"


def test_a_backend_that_is_named_computes_all(machine: Machine) -> None:
    machine.install("flash-attn")
    names = ("flash_attn", "varlen", "cuda", "torch")
    chosen = [machine.choose(wanted=name).name for name in names]
    assert chosen == ["flash_attn 2", "varlen", "cuda", "torch"]


def test_a_library_that_is_wrong_here_is_passed_over(machine: Machine) -> None:
    machine.install("flash-attn")
    machine.install("flash-attn-4")
    machine.is_right = False
    assert machine.choose().name == "cuda, prompts varlen"
    with pytest.raises(ValueError, match="does not give what the reference gives"):
        machine.choose(wanted="flash_attn")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dtype": torch.float32}, "cuda"),
        ({"has_softcap": True}, "cuda, prompts flash_attn 2"),
        ({"has_sinks": True}, "cuda"),
        ({"has_windows": True}, "cuda, prompts flash_attn 2"),
        ({"head_dims": frozenset({(192, 128)})}, "cuda"),
        ({"head_dims": frozenset({(512, 512)})}, "cuda"),
    ],
    ids=str,
)
def test_what_a_model_asks_for_decides(
    machine: Machine, changes: dict[str, Any], expected: str
) -> None:
    machine.install("flash-attn")
    assert machine.choose(dataclasses.replace(LLAMA, **changes)).name == expected


def test_softcap_is_nothing_for_torchs_own(machine: Machine) -> None:
    assert machine.choose(dataclasses.replace(LLAMA, has_softcap=True)).name == "cuda"


def test_an_older_gpu_has_no_blocks_with_flash_attention_4(machine: Machine) -> None:
    machine.install("flash-attn-4")
    machine.capability = (8, 0)
    assert machine.choose().name == "cuda, prompts varlen"


def test_where_version_4_cannot_serve_version_2_does(machine: Machine) -> None:
    machine.install("flash-attn-4")
    machine.install("flash-attn")
    wide = dataclasses.replace(LLAMA, head_dims=frozenset({(256, 256)}))
    assert machine.choose(wide, "flash_attn").name == "flash_attn 2"
    machine.capability = (8, 0)
    assert machine.choose(wanted="flash_attn").name == "flash_attn 2"


def test_a_library_that_fails_when_it_is_imported_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise OSError("libcudart.so.12: cannot open shared object file\nand more")

    machine.install("flash-attn")
    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(ValueError, match=r"cannot be imported: libcudart.*file$"):
        machine.choose(wanted="flash_attn")
    assert machine.choose().name == "cuda"


def test_an_older_torch_and_a_kernel_without_a_page_size_leave_our_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.page_size = None
    assert machine.choose().name == "cuda"
    machine.page_size = 256
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    assert (machine.choose().name, machine.choose().page_size) == ("cuda", 16)


def test_varlen_does_not_split_rows_that_must_not_depend_on_the_batch(machine: Machine) -> None:
    assert machine.choose(wanted="varlen", batch_invariant=True)._num_splits == 1
    assert machine.choose(wanted="varlen", batch_invariant=False)._num_splits is None


def test_the_log_says_what_was_chosen_and_why_not_another(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine"):
        machine.choose()
    (line,) = (record.message for record in caplog.records)
    start = "attention by cuda, prompts varlen, 256 tokens a block (flash_attn: neither"
    assert line.startswith(start)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("flash_attn", "neither flash-attn-4 nor flash-attn is installed"),
        ("varlen", "it has no softcap"),
    ],
)
def test_a_wanted_backend_that_cannot_is_refused_in_one_line(
    machine: Machine, wanted: str, reason: str
) -> None:
    needs = dataclasses.replace(LLAMA, has_softcap=True)
    with pytest.raises(ValueError, match=f"attn_backend '{wanted}' cannot be used: .*{reason}$"):
        machine.choose(needs, wanted)


def test_our_own_kernels_must_be_built(machine: Machine) -> None:
    wanted = config(attn_backend="cuda")
    with pytest.raises(ValueError, match="csrc/cuda is not built"):
        choose_attention(wanted, LLAMA, ops.REFERENCE, GPU)
    unbuilt = choose_attention(
        config(), dataclasses.replace(LLAMA, has_sinks=True), ops.REFERENCE, GPU
    )
    assert unbuilt.name == "torch"


def test_a_package_that_cannot_be_imported_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.installed.add("flash-attn")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert machine.choose().name == "cuda, prompts varlen"
    with pytest.raises(ValueError, match=re.escape("flash_attn cannot be imported")):
        machine.choose(wanted="flash_attn")


def test_what_layers_ask_for_is_taken_together() -> None:
    plain = LayerShape(8, 2, 64, 64, torch.bfloat16, 0, 0.0, False)
    shapes = [plain, dataclasses.replace(plain, sliding_window=40, value_head_dim=32)]
    needs = AttentionNeeds.of(shapes)
    assert needs == AttentionNeeds(
        torch.bfloat16, frozenset({(64, 64), (64, 32)}), has_windows=True
    )
    assert needs.widest == 64 and not needs.is_even


def test_distributions_are_looked_up_by_name() -> None:
    assert has_distribution("torch") and not has_distribution("flash-attn-9")
