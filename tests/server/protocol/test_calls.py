"""`CallLedger`: what entries say of calls, and what they still have to say."""

import msgspec
import pytest

from server.live.response_log import response_frame
from server.protocol.calls import CallLedger, num_call_characters
from server.protocol.server_frames import CallEntry
from sessions.model.events import ObjectEvent

RESPONSE = "resp_" + "x" * 33


def written(ledger: CallLedger) -> list[CallEntry]:
    entries = [ledger.begin("clock"), ledger.add(0, "{"), ledger.add(0, "}")]
    entries += ledger.end(0, is_valid=True)
    return [*entries, ledger.begin("weather"), *ledger.end(1, is_valid=False)]


def test_entries_tell_a_reader_what_the_writer_knows() -> None:
    ledger = CallLedger(RESPONSE)
    entries = [entry.wire() for entry in written(ledger)]
    assert [entry["type"].removeprefix("response.") for entry in entries] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
    ]
    first, second = CallLedger(RESPONSE, entries).items()
    assert first == {
        "type": "function_call",
        "id": f"fc_{'x' * 33}_0",
        "call_id": f"call_{'x' * 33}_0",
        "name": "clock",
        "arguments": "{}",
        "status": "completed",
    }
    assert (second["arguments"], second["status"]) == ("", "failed")
    assert ledger.items() == [first, second]
    assert sum(map(num_call_characters, entries)) == len("clock{}{}clock{}weatherweather")


@pytest.mark.parametrize("num_stored", range(9))
def test_a_second_ledger_goes_on_with_the_rest(num_stored: int) -> None:
    entries = [entry.wire() for entry in written(CallLedger(RESPONSE))]
    ledger = CallLedger(RESPONSE, entries[:num_stored])
    said = [] if ledger.calls else [ledger.begin("clock")]
    missing = "{}"[len(ledger.calls[0].arguments) :]
    said += [ledger.add(0, delta) for delta in missing]
    said += ledger.end(0, is_valid=True)
    said += [] if len(ledger.calls) > 1 else [ledger.begin("weather")]
    said += ledger.end(1, is_valid=False)
    assert entries[:num_stored] + [entry.wire() for entry in said] == entries
    assert ledger.end(0, is_valid=True) == []


def test_what_an_answer_ends_in_is_incomplete() -> None:
    ledger = CallLedger(RESPONSE)
    ledger.begin("clock")
    assert not ledger.has_completed
    assert [item["status"] for item in ledger.items(is_over=True)] == ["incomplete"]


def carried_out(ledger: CallLedger) -> list[CallEntry]:
    call = ledger.calls[0]
    return [
        ledger.output(call, server_label="s", status="awaiting_consent", consent="always"),
        ledger.output(call, server_label="s", status="in_progress", key="k0", place=("e", 3)),
        ledger.output(call, server_label="s", status="in_progress", key="k1", place=("e", 4)),
        ledger.output(call, server_label="s", status="completed", output="twelve"),
    ]


def test_entries_say_what_becomes_of_a_call_and_it_is_read_from_them() -> None:
    ledger = CallLedger(RESPONSE)
    entries = [entry.wire() for entry in [*written(ledger), *carried_out(ledger)]]
    read = CallLedger(RESPONSE, entries)
    (output,) = read.outputs.values()
    assert output.item == {
        "type": "function_call_output",
        "id": f"fco_{'x' * 33}_0",
        "call_id": f"call_{'x' * 33}_0",
        "name": "clock",
        "server_label": "s",
        "output": "twelve",
        "status": "completed",
    }
    assert (output.num_sent, output.key, output.place) == (2, "k1", {"epoch": "e", "num_begun": 4})
    assert {entry["output_index"] for entry in entries[-4:]} == {2}
    assert read.items() == ledger.items()  # the calls themselves are as before
    assert read.all_items() == [*read.items(), output.item]


@pytest.mark.parametrize(("num_stored", "is_sent"), [(1, False), (2, True), (3, True), (4, False)])
def test_what_the_end_of_an_answer_leaves_open_is_cancelled(num_stored: int, is_sent: bool) -> None:
    ledger = CallLedger(RESPONSE)
    entries = [entry.wire() for entry in [*written(ledger), *carried_out(ledger)]]
    read = CallLedger(RESPONSE, entries[: 8 + num_stored])
    (output,) = read.outputs.values()
    assert output.is_sent is is_sent
    (final,) = read.final_outputs()
    assert final["status"] == ("completed" if num_stored == 4 else "cancelled")
    code = "tool_cancelled" if is_sent else "tool_not_started"
    assert final.get("code") == (None if num_stored == 4 else code)
    assert not {"consent", "expires_at"} & final.keys()


def test_clients_are_not_sent_where_a_call_runs() -> None:
    ledger = CallLedger(RESPONSE)
    written(ledger)
    sent = carried_out(ledger)[1].wire()
    assert {"key", "place"} <= sent.keys()
    frame = response_frame(9, 1, ObjectEvent(sent))
    assert not {"key", "place"} & msgspec.to_builtins(frame).keys()
