"""What the tables say of a row and of a target."""

import pytest

from bench.peers.figures import Row, Target, compare, floor_rate
from bench.peers.tables import share_of_floor, wanted

KNOWN = {"num_weights": 10**8, "kv_values": 10**4, "weight_bytes": {"vllm:bf16": 2.0}}


def row(case: str, value: float, bandwidth: float | None, peer: str = "vllm") -> Row:
    details = {"output_tokens": 128}
    return Row(0, "m1", peer, "bf16", case, value, "tok/s", bandwidth, details=details)


def test_a_decode_rate_is_a_share_of_what_the_memory_allows_in_its_middle() -> None:
    floor = floor_rate(20.0, 10**8, 2.0, 10**4, 128 + 64)
    rows = [row("decode@128", floor / 2, 20.0), row("decode@128", 5, None)]
    assert share_of_floor(rows, "vllm:bf16", "decode@128", KNOWN) == pytest.approx(0.5)


@pytest.mark.parametrize("case", ["decode@128", "burst@4"])
def test_other_cases_and_unmeasured_memory_have_no_floor(case: str) -> None:
    bandwidth = 20.0 if case == "burst@4" else None
    assert share_of_floor([row(case, 5, bandwidth)], "vllm:bf16", case, KNOWN) is None


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target("m1", "decode@128", "bf16", 1.1), "≥ 1.1×"),
        (Target("m1", "decode@128", "bf16", 1.1, rival="vllm"), "≥ 1.1× vllm"),
        (Target("m1", "decode@128", "bf16", 3.0, is_absolute=True), "≤ 3 tok/s"),
    ],
)
def test_a_target_is_told_with_its_rival_or_its_unit(target: Target, text: str) -> None:
    rows = [row("decode@128", 5, None, peer) for peer in ("parley", "vllm")]
    (found,) = compare(rows, [target])
    assert wanted(found) == text
