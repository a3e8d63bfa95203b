"""decoder_step with adapters: against its torch reference, and that no row feels another's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.ops import library as ops
from engine.core.ops.adapters import StepAdapters, pack_adapter
from engine.core.ops.decoder_step import HiddenRows, LoadedDecoder, flatten
from tests.csrc.test_decoder import FORMATS, Model, check_equals_reference
from tests.helpers.built_kernels import needs_kernels

pytestmark = needs_kernels

PARTS = [(0, 0, 1), (1, 0, 9), (2, 0, 30), (3, 0, 4)]  # 44 rows
OWNERS = [-1] + [0] * 9 + [1] * 30 + [0] * 4  # adapters of the rows
RANKS = (3, 20)  # less than a panel, and more


def adapters_for(loaded: LoadedDecoder, owners: list[int], format: str = "float32") -> StepAdapters:
    """The first is of all modules, the second of some of one layer, with a smaller rank in one."""
    torch.manual_seed(1)
    packed = []
    for index, rank in enumerate(RANKS):
        layers: list[Any] = []
        for layer in range(len(loaded.settings.windows)):
            pairs = {}
            for module, (num_inputs, num_outputs) in enumerate(loaded.module_sizes):
                if index and (layer == 0 or module not in (0, 2, 5, 6)):
                    continue
                own = 2 if module == 2 else rank
                down = torch.randn(own, num_inputs) / num_inputs**0.5
                pairs[module] = (down, torch.randn(num_outputs, own) / own**0.5)
            layers.append(pairs)
        packed.append(pack_adapter(loaded.module_sizes, layers, rank, format))
    return StepAdapters(
        torch.tensor(owners),
        [each.weights for each in packed],
        torch.stack([each.targets for each in packed]),
        torch.tensor([each.rank for each in packed]),
    )


def run(
    model: Model,
    backend: str,
    parts: list[tuple[int, int, int]],
    owners: list[int] | None,
    format: str = "float32",
) -> Tensor:
    """The logits of all rows; `format` is that of the adapters."""
    inputs, loaded = model.inputs(parts, all_logits=True), model.load()
    adapters = None if owners is None else adapters_for(loaded, owners, format)
    logits = model.logits(inputs)
    ops.choose(backend).decoder_step(inputs, loaded, logits, None, adapters)
    return logits


@pytest.mark.parametrize("of_adapters", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_biased", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_with_adapters_equal_the_reference(
    format: str, is_biased: bool, of_adapters: str
) -> None:
    model = Model(format, has_bias=is_biased, has_qk_norms=is_biased)
    ours, reference = (
        run(model, backend, PARTS, OWNERS, of_adapters) for backend in ("cpu", "torch")
    )
    check_equals_reference(ours, reference, format)
    without = run(model, "cpu", PARTS, None)
    differences = (ours - without).abs().amax(-1)
    assert differences[0] == 0 and differences[1:].min() > 0.01


@pytest.mark.parametrize("of_adapters", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("format", FORMATS)
def test_a_rows_bits_depend_on_no_other_row(
    format: str, num_threads: int, of_adapters: str
) -> None:
    model, before = Model(format), torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        together = run(model, "cpu", PARTS, OWNERS, of_adapters)
        start = 0
        for part in PARTS:
            end = start + part[2]
            alone = run(model, "cpu", [part], OWNERS[start:end], of_adapters)
            assert alone.equal(together[start:end])
            start = end
        assert run(model, "cpu", PARTS[:1], None).equal(together[:1])
    finally:
        torch.set_num_threads(before)


def test_adapters_come_beside_hidden_rows() -> None:
    model = Model("float32")
    inputs, loaded = model.inputs(PARTS), model.load()
    outs = []
    for backend in ("cpu", "torch"):
        hidden = HiddenRows(torch.tensor([0, 43]), torch.full((2, 64), torch.nan))
        adapters = adapters_for(loaded, OWNERS)
        ops.choose(backend).decoder_step(inputs, loaded, model.logits(inputs), hidden, adapters)
        outs.append(hidden.out)
    check_equals_reference(outs[0], outs[1], "float32")


def changed(**fields: Any) -> tuple[Any, ...]:
    model = Model("float32")
    inputs, loaded = model.inputs([(0, 0, 1)]), model.load()
    adapters = adapters_for(loaded, [0])._replace(**fields)
    return flatten(inputs, loaded, model.logits(inputs), None, adapters)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("rows", torch.tensor([2]), "adapter_rows has 2, the limit is 2"),
        ("rows", torch.tensor([-2]), "adapter_rows has -2"),
        ("rows", torch.tensor([0, 0]), "adapter_rows is a row of 1 int64"),
        ("rows", None, "come together"),
        ("weights", None, "come together"),
        (
            "weights",
            [torch.zeros(2, 5, dtype=torch.bfloat16)] * 2,
            "an adapter has 10 numbers, not",
        ),
        ("weights", [torch.zeros(2, 5, dtype=torch.float16)] * 2, "in float32 or bfloat16"),
        ("weights", [torch.zeros(2, 5)] * 2, "an adapter has 10 numbers, not"),
        ("weights", [torch.zeros(2, 5)], "adapter_ranks is a row of 1 int64"),
        ("targets", torch.zeros(1, 2), "adapter_targets are contiguous int64"),
        ("targets", torch.zeros(2, 3, dtype=torch.int64), "adapter_targets are contiguous int64"),
        ("ranks", torch.tensor([0, 20]), "adapter_ranks has 0"),
        ("ranks", torch.tensor([4, 21]), "an adapter has"),
        ("ranks", torch.tensor([1 << 40, 20]), "adapter_ranks has"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(field: str, value: Any, problem: str) -> None:
    arguments = changed(**{field: value})
    with pytest.raises(RuntimeError, match=problem):
        torch.ops.parley.decoder_step(*arguments)


def test_an_odd_rank_has_no_pairs_for_bfloat16() -> None:
    loaded = Model("float32").load()
    assert adapters_for(loaded, [0], "bfloat16").ranks.tolist() == [4, 20]
    numbers = sum(
        16 * inputs + -(-outputs // 16) * 16 * 3 for inputs, outputs in loaded.module_sizes
    )
    weights = [torch.zeros(2, numbers, dtype=torch.bfloat16)] * 2
    arguments = changed(weights=weights, ranks=torch.tensor([3, 3]))
    with pytest.raises(RuntimeError, match="an even rank"):
        torch.ops.parley.decoder_step(*arguments)


def test_opcheck() -> None:
    torch.library.opcheck(
        torch.ops.parley.decoder_step.default,
        changed(rows=torch.tensor([1])),
        test_utils=("test_schema", "test_faketensor"),
    )
