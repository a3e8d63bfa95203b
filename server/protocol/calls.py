"""`CallLedger`: the calls of tools in one answer, as its entries tell of them.

Ids are made of the response's id and the call's number, so whoever reads the answer again gives
them again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from server.protocol.objects import FunctionCall
from server.protocol.server_frames import (
    ArgumentsDoneEntry,
    ArgumentsEntry,
    CallEntry,
    ItemAddedEntry,
    ItemDoneEntry,
)

ADDED = str(ItemAddedEntry.__struct_config__.tag)
ITEM_DONE = str(ItemDoneEntry.__struct_config__.tag)
ARGUMENTS = str(ArgumentsEntry.__struct_config__.tag)
ARGUMENTS_DONE = str(ArgumentsDoneEntry.__struct_config__.tag)
CALL_ENTRIES = frozenset((ADDED, ITEM_DONE, ARGUMENTS, ARGUMENTS_DONE))


@dataclass(slots=True)
class Call:
    """One call, as far as entries tell of it."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    has_all: bool = False  # an entry said that these are all of its arguments
    status: str = "in_progress"

    @property
    def is_done(self) -> bool:
        return self.status != "in_progress"

    def item(self, *, is_over: bool = False) -> dict[str, Any]:
        """The protocol's object; a call that is not done when the answer is over is incomplete."""
        status = "incomplete" if is_over and not self.is_done else self.status
        return {
            "type": "function_call",
            "id": self.id,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
            "status": status,
        }


class CallLedger:
    """The calls that were begun, in order. Its methods give the entries that say what is new."""

    def __init__(self, response_id: str, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self._response_id = response_id
        self._tail = response_id.removeprefix("resp_")
        self.calls: list[Call] = []
        for entry in entries:
            self._take(entry)

    @property
    def has_completed(self) -> bool:
        """Whether one of them waits for what its tool gives back."""
        return any(call.status == "completed" for call in self.calls)

    def items(self, *, is_over: bool = False) -> list[dict[str, Any]]:
        return [call.item(is_over=is_over) for call in self.calls]

    def begin(self, name: str) -> CallEntry:
        place = len(self.calls)
        self.calls.append(Call(f"fc_{self._tail}_{place}", f"call_{self._tail}_{place}", name))
        return ItemAddedEntry(
            response_id=self._response_id, output_index=place, item=self._object(place)
        )

    def add(self, place: int, delta: str) -> CallEntry:
        """More of the arguments of a call."""
        call = self.calls[place]
        call.arguments += delta
        return ArgumentsEntry(
            response_id=self._response_id, output_index=place, item_id=call.id, delta=delta
        )

    def end(self, place: int, *, is_valid: bool) -> list[CallEntry]:
        """A call is over; of what says so, that which was not said before."""
        call = self.calls[place]
        entries: list[CallEntry] = []
        if not call.has_all:
            call.has_all = True
            entries.append(
                ArgumentsDoneEntry(
                    response_id=self._response_id,
                    output_index=place,
                    item_id=call.id,
                    arguments=call.arguments,
                )
            )
        if not call.is_done:
            call.status = "completed" if is_valid else "failed"
            item = self._object(place)
            entries.append(
                ItemDoneEntry(response_id=self._response_id, output_index=place, item=item)
            )
        return entries

    def _object(self, place: int) -> FunctionCall:
        return msgspec.convert(self.calls[place].item(), FunctionCall)

    def _take(self, entry: Mapping[str, Any]) -> None:
        kind = entry["type"]
        if kind == ADDED:
            item = entry["item"]
            if item["type"] == "function_call":
                self.calls.append(Call(item["id"], item["call_id"], item["name"]))
            return
        call = self.calls[entry["output_index"]]
        if kind == ARGUMENTS:
            call.arguments += entry["delta"]
        elif kind == ARGUMENTS_DONE:
            call.has_all = True
        else:
            call.status = entry["item"]["status"]


def num_call_characters(entry: Mapping[str, Any]) -> int:
    """About how long an entry is that tells of a call."""
    item = entry.get("item") or {}
    texts = (entry.get("delta"), entry.get("arguments"), item.get("arguments"), item.get("name"))
    return sum(len(text) for text in texts if isinstance(text, str))
