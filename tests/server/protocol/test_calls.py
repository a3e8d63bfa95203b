"""`CallLedger`: what entries say of calls, and what they still have to say."""

import pytest

from server.protocol.calls import CallLedger, num_call_characters
from server.protocol.server_frames import CallEntry

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
def test_whoever_goes_on_says_the_rest(num_stored: int) -> None:
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
