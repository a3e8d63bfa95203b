"""Rows → medians, ratios beside the best peer, verdicts."""

import pytest

from bench.peers.record.figures import (
    Row,
    Summary,
    Target,
    compare,
    floor_rate,
    prefill_rate,
    summaries,
)


def row(engine: str, case: str, value: float, round: int = 0, unit: str = "tok/s") -> Row:
    peer, _, precision = engine.partition(":")
    return Row(round, "m1", peer, precision, case, value, unit)


def test_a_summary_has_the_median_and_the_range() -> None:
    found = summaries([row("vllm:bf16", "decode@128", value) for value in (3.0, 1.0, 2.0)])
    assert found["m1", "decode@128", "vllm:bf16"] == Summary(2.0, 1.0, 3.0, 3)


def test_parley_is_compared_with_the_best_peer_of_its_family() -> None:
    rows = [
        row("parley:bf16", "decode@128", 30),
        row("vllm:bf16", "decode@128", 20),
        row("llama.cpp:f16", "decode@128", 25),
        row("llama.cpp:q8_0", "decode@128", 90),
    ]
    (found,) = compare(rows)
    assert found.rival_engine == "llama.cpp:f16"
    assert found.ratio is not None and found.ratio.median == 1.2
    assert found.verdict == "reached"


def test_weights_in_4_bits_are_compared_with_each_other() -> None:
    rows = [
        row("parley:q4_0", "decode@128", 50),
        row("llama.cpp:q4_0", "decode@128", 44),
        row("llama.cpp:q4_k_m", "decode@128", 40),
        row("llama.cpp:q8_0", "decode@128", 90),
    ]
    (found,) = compare(rows)
    assert (found.rival_engine, found.verdict) == ("llama.cpp:q4_0", "MISSED")  # 1.14, not 1.15


def test_a_cache_of_bytes_is_compared_for_itself_with_the_same_rivals() -> None:
    case = "decode@2048"
    rows = [row("parley:bf16", case, 11), row("parley:bf16-kv8", case, 11)]
    plain, bytes_ = compare([*rows, row("openvino:fp16", case, 10)])
    assert (plain.own_engine, plain.verdict) == ("parley:bf16", "reached")  # 1.05
    assert (bytes_.own_engine, bytes_.verdict) == ("parley:bf16-kv8", "MISSED")  # 1.15
    assert plain.rival_engine == bytes_.rival_engine == "openvino:fp16"


def test_of_durations_the_shortest_is_the_best() -> None:
    rows = [
        row("parley:int8", "chat@8x4", 6, unit="s"),
        row("openvino:int8", "chat@8x4", 10, unit="s"),
        row("llama.cpp:q8_0", "chat@8x4", 40, unit="s"),
    ]
    (found,) = compare(rows)
    assert (found.rival_engine, found.verdict) == ("openvino:int8", "MISSED")


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    own, rival = [10.0, 20.0, 40.0], [10.0, 10.0, 10.0]
    rows = [row("parley:bf16", "burst@4", value, n) for n, value in enumerate(own)]
    rows += [row("vllm:bf16", "burst@4", value, n) for n, value in enumerate(rival)]
    (found,) = compare(rows)
    assert found.ratio == Summary(2.0, 1.0, 4.0, 3)


def test_rounds_in_which_one_had_no_turn_do_not_count() -> None:
    rows = [row("parley:bf16", "burst@4", 10, 0), row("parley:bf16", "burst@4", 30, 1)]
    (found,) = compare([*rows, row("vllm:bf16", "burst@4", 10, 1)])
    assert found.ratio is not None and (found.ratio.median, found.ratio.count) == (3.0, 1)


@pytest.mark.parametrize(("value", "verdict"), [(4.9, "reached"), (5.1, "MISSED")])
def test_an_absolute_target_needs_no_rival(value: float, verdict: str) -> None:
    (found,) = compare([row("parley:bf16", "lost by websocket@16", value, unit="%")])
    assert found.rival is None
    assert found.verdict == verdict


def test_a_target_may_name_its_rival_and_a_missing_one_is_reported() -> None:
    target = Target("m1", "decode@128", "bf16", 1.1, rival="llama.cpp")
    rows = [row("parley:bf16", "decode@128", 30), row("vllm:bf16", "decode@128", 90)]
    (found,) = compare(rows, [target])
    assert found.verdict == "no rival"
    rows.append(row("llama.cpp-split:f16", "decode@128", 20))
    (found,) = compare(rows, [target])
    assert (found.rival_engine, found.verdict) == ("llama.cpp-split:f16", "reached")


def test_the_floor_of_a_step_is_what_must_be_read() -> None:
    # 600 M weights of 2 bytes, and 1,000 tokens of 57,344 values: 1.31 GB at 50 GB/s
    rate = floor_rate(50, 600_000_000, 2.0, 57_344, 1000)
    assert rate == pytest.approx(50e9 / (1.2e9 + 114_688_000))


def test_a_prompt_attends_to_half_of_itself_on_average() -> None:
    whole = sum(2_000 + 10 * keys for keys in (1, 2, 3, 4, 5))
    assert prefill_rate(1e-9, 2_000, 10, 5) == pytest.approx(5 / whole)
