"""What a record keeps, and which run may go on with it."""

from pathlib import Path

import pytest

from bench.peers.record.figures import Row
from bench.peers.record.record import Mismatch, Record

CONDITIONS = {"machine": "one", "threads": 2, "sizes": {"chats": (4, 8)}}


def row(number: int) -> Row:
    return Row(number, "m1", "vllm", "bf16", "burst@4", 40.0, "tok/s", 20.0, 0.1, {"pieces": 3})


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    record = Record(CONDITIONS, [row(0)], notes={"vllm": "slow to start"}, left_out=["x: why"])
    facts = {"num_weights": 6, "kv_values": 2}
    record.add_model("m1", facts, {"vllm:bf16": 2.0}, {"vllm:bf16": 2.0})
    record.add_version("vllm:bf16", "0.11")
    record.write(tmp_path / "new" / "peers.json")
    again = Record.read(tmp_path / "new" / "peers.json")
    again.check_conditions(CONDITIONS)
    assert (again.rows, again.models) == (record.rows, record.models)
    assert (again.versions, again.notes) == (record.versions, record.notes)
    assert (again.left_out, again.is_quick) == (record.left_out, False)


def test_rounds_come_after_those_that_are_there() -> None:
    assert Record(CONDITIONS).next_round == 0
    assert Record(CONDITIONS, [row(0), row(4), row(2)]).next_round == 5


@pytest.mark.parametrize(
    "other", [{"machine": "two"}, {"threads": 4}, {"sizes": {"chats": (4, 8, 16)}}]
)
def test_a_run_under_other_conditions_does_not_go_on(other: dict[str, object]) -> None:
    with pytest.raises(Mismatch, match=f"the recorded run had {next(iter(other))}"):
        Record(CONDITIONS).check_conditions(CONDITIONS | other)


def test_an_engine_of_another_version_does_not_join() -> None:
    record = Record(CONDITIONS)
    record.add_version("vllm:bf16", "0.11")
    record.add_version("vllm:bf16", "0.11")
    with pytest.raises(Mismatch, match=r"was 0\.11 in the recorded run, and is"):
        record.add_version("vllm:bf16", "0.12")


def test_the_weights_of_further_engines_join_those_of_a_model() -> None:
    record = Record(CONDITIONS)
    record.add_model("m1", {"num_weights": 6}, {"vllm:bf16": 2.0}, {"vllm:bf16": 2.0})
    record.add_model("m1", {"num_weights": 6}, {"openvino:int8": 1.0}, {"openvino:int8": 1.0})
    of_each = {"vllm:bf16": 2.0, "openvino:int8": 1.0}
    expected = {"num_weights": 6, "weight_bytes": of_each, "value_bytes": of_each}
    assert record.models["m1"] == expected


def test_a_record_without_the_bytes_of_keys_and_values_is_gone_on_with() -> None:
    record = Record(CONDITIONS, models={"m1": {"weight_bytes": {"vllm:bf16": 2.0}}})
    record.add_model("m1", {"num_weights": 6}, {"parley:bf16-kv8": 2.0}, {"parley:bf16-kv8": 1.03})
    assert record.models["m1"]["value_bytes"] == {"parley:bf16-kv8": 1.03}
