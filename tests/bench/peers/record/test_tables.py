"""What the tables say of a row and of a target."""

import pytest

from bench.peers.machine.terminal import console
from bench.peers.record.figures import Row, Summary, Target, compare, floor_rate, prefill_rate
from bench.peers.record.tables import (
    floor_verdict,
    markdown,
    share_of_floor,
    share_of_multiplications,
    show,
    wanted,
)

KNOWN = {"num_weights": 10**8, "kv_values": 10**4, "weight_bytes": {"vllm:bf16": 2.0}}


def row(
    case: str,
    value: float,
    bandwidth: float | None,
    peer: str = "vllm",
    precision: str = "bf16",
    gigaflops: float | None = None,
) -> Row:
    details = {"output_tokens": 128}
    return Row(
        0,
        "m1",
        peer,
        precision,
        case,
        value,
        "tok/s",
        bandwidth,
        details=details,
        gigaflops=gigaflops,
    )


def test_a_decode_rate_is_a_share_of_what_the_memory_allows_in_its_middle() -> None:
    floor = floor_rate(20.0, 10**8, 2.0, 10**4, 128 + 64)
    rows = [row("decode@128", floor / 2, 20.0), row("decode@128", 5, None)]
    share = share_of_floor(rows, "vllm:bf16", "decode@128", KNOWN)
    assert share is not None and share.median == pytest.approx(0.5)


def test_keys_and_values_of_bytes_are_charged_as_such() -> None:
    engine, floor = "parley:bf16-kv8", floor_rate(20.0, 10**8, 2.0, 10**4, 128 + 64, 1.03)
    known = {**KNOWN, "weight_bytes": {engine: 2.0}, "value_bytes": {engine: 1.03}}
    rows = [row("decode@128", floor, 20.0, "parley", "bf16-kv8")]
    share = share_of_floor(rows, engine, "decode@128", known)
    assert share is not None and share.median == pytest.approx(1)


def test_a_prompt_is_a_share_of_what_the_processors_multiply() -> None:
    case, known = "prefill@1024", {**KNOWN, "flops_per_token": 10**9, "flops_per_key": 10**5}
    best = prefill_rate(300.0, 10**9, 10**5, 1024)
    rows = [row(case, 0.7 * best, 20.0, gigaflops=300.0), row(case, 5, 20.0)]
    share = share_of_multiplications(rows, "vllm:bf16", case, known)
    assert share is not None and share.median == pytest.approx(0.7)
    assert share_of_multiplications(rows, "vllm:bf16", case, KNOWN) is None  # an older record
    of_bytes = [row(case, 5, 20.0, "parley", "int8", gigaflops=300.0)]
    assert share_of_multiplications(of_bytes, "parley:int8", case, known) is None


@pytest.mark.parametrize("case", ["decode@128", "burst@4"])
def test_other_cases_and_unmeasured_memory_have_no_floor(case: str) -> None:
    bandwidth = 20.0 if case == "burst@4" else None
    assert share_of_floor([row(case, 5, bandwidth)], "vllm:bf16", case, KNOWN) is None


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target("m1", "decode@128", "bf16", 1.1), "≥ 1.1×"),
        (Target("m1", "decode@128", "bf16", 1.1, rival="vllm"), "≥ 1.1× vllm"),
        (Target("m1", "decode@128", "bf16", 3.0, kind="absolute"), "≤ 3 tok/s"),
    ],
)
def test_a_target_is_shown_with_its_rival_or_its_unit(target: Target, text: str) -> None:
    rows = [row("decode@128", 5, None, peer) for peer in ("parley", "vllm")]
    (found,) = compare(rows, [target])
    assert wanted(found) == text


@pytest.mark.parametrize(
    ("median", "verdict"),
    [(0.93, "reached"), (0.92, "reached"), (0.91, "MISSED"), (None, "no floor")],
)
def test_a_share_of_the_floor_has_a_target(median: float | None, verdict: str) -> None:
    target = Target("m1", "decode@128", "bf16", 0.92, kind="floor")
    share = None if median is None else Summary(median, 0.1, 1.1, 3)
    assert floor_verdict(share, target) == verdict


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_recorded_run_is_shown_with_its_share_of_the_floor(is_quick: bool) -> None:
    floor = floor_rate(20.0, 10**8, 2.0, 10**4, 128 + 64)
    rows = [row("decode@128", 0.9 * floor, 20.0, "parley"), row("decode@128", 2, 20.0)]
    known = {**KNOWN, "weight_bytes": {"parley:bf16": 2.0, "vllm:bf16": 2.0}}  # an older record
    with console.capture() as shown:
        show(rows, {"m1": known}, is_quick)
    lines = [line for line in shown.get().splitlines() if "≥ 0.92" in line]
    assert [("0.90" in line, "MISSED" in line) for line in lines] == [(True, True)] * (not is_quick)


def test_a_document_has_a_table_for_each_kind_of_weights() -> None:
    rows = [
        row("decode@128", 30, 20.0, "parley"),
        row("decode@128", 20, 20.0),
        row("decode@128", 50, 20.0, "parley", "int8"),
    ]
    assert markdown(rows).splitlines() == [
        "",
        "m1, weights of bf16's kind:",
        "",
        "| case | Parley | best peer | ratio | of the rounds | target |  |",
        "|---|---|---|---|---|---|---|",
        "| decode@128, bf16 | 30 tok/s | 20 vllm:bf16 | 1.50 | 1.50 – 1.50 | ≥ 1.1× | reached |",
        "",
        "m1, weights of int8's kind:",
        "",
        "| case | Parley | best peer | ratio | of the rounds | target |  |",
        "|---|---|---|---|---|---|---|",
        "| decode@128, int8 | 50 tok/s |  |  |  | ≥ 1.5× | no rival |",
    ]
