"""`CallLedger`: the calls of tools in one answer, and what becomes of them, as its entries tell.

Ids are made of the response's id and the call's number, so a second reading of the answer
makes the same ids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from server.protocol.objects import FunctionCall, FunctionCallOutput
from server.protocol.server_frames import (
    ArgumentsDoneEntry,
    ArgumentsEntry,
    CallEntry,
    ItemAddedEntry,
    ItemDoneEntry,
    ToolPlace,
)

ADDED = str(ItemAddedEntry.__struct_config__.tag)
ITEM_DONE = str(ItemDoneEntry.__struct_config__.tag)
ARGUMENTS = str(ArgumentsEntry.__struct_config__.tag)
ARGUMENTS_DONE = str(ArgumentsDoneEntry.__struct_config__.tag)
CALL_ENTRIES = frozenset((ADDED, ITEM_DONE, ARGUMENTS, ARGUMENTS_DONE))
OUTPUT = str(FunctionCallOutput.__struct_config__.tag)
CANCELLED = "error tool_cancelled: the call was stopped; the tool may have run"
NOT_STARTED = "error tool_not_started: the answer was stopped before the call ran"


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


@dataclass(slots=True)
class CallOutput:
    """What becomes of a call that the server carries out, as far as entries tell of it."""

    item: dict[str, Any]  # as the last entry has it
    output_index: int
    num_sent: int = 0  # how often it was sent to the tool process, or was about to be
    key: str = ""  # of the last time
    place: Mapping[str, Any] | None = None  # likewise

    @property
    def status(self) -> str:
        return str(self.item["status"])

    @property
    def is_settled(self) -> bool:
        return self.status not in ("awaiting_consent", "in_progress")

    @property
    def is_sent(self) -> bool:
        """Whether it may be running at the tool process."""
        return self.status == "in_progress" and bool(self.key)

    def final_item(self) -> dict[str, Any]:
        """As the message keeps it: the end of the answer has stopped what was open."""
        if self.is_settled:
            return self.item
        kept = ("type", "id", "call_id", "name", "server_label")
        item = {name: self.item[name] for name in kept if name in self.item}
        code, output = ("tool_not_started", NOT_STARTED)
        if self.is_sent:
            code, output = ("tool_cancelled", CANCELLED)
        return {**item, "output": output, "status": "cancelled", "code": code}


class CallLedger:
    """The calls that were begun, in order. Its methods give the entries that say what is new."""

    def __init__(self, response_id: str, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self._response_id = response_id
        self._tail = response_id.removeprefix("resp_")
        self.calls: list[Call] = []
        self.outputs: dict[str, CallOutput] = {}  # by the id of the call
        for entry in entries:
            self._take(entry)

    @property
    def has_completed(self) -> bool:
        """Whether one of them waits for what its tool gives back."""
        return any(call.status == "completed" for call in self.calls)

    def items(self, *, is_over: bool = False) -> list[dict[str, Any]]:
        return [call.item(is_over=is_over) for call in self.calls]

    def all_items(self) -> list[dict[str, Any]]:
        """The calls, and what has become of those that the server carries out."""
        return self.items() + [output.item for output in self.outputs.values()]

    def final_outputs(self) -> list[dict[str, Any]]:
        """What has become of calls, in their order, of an answer that is over."""
        by_call = self.outputs
        mine = [by_call[call.call_id] for call in self.calls if call.call_id in by_call]
        return [output.final_item() for output in mine]

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

    def output(
        self,
        call: Call,
        *,
        key: str | None = None,
        place: tuple[str, int] | None = None,
        **fields: Any,
    ) -> CallEntry:
        """Something new of a call that the server carries out: `status`, `output`, `code` and such.

        With `key` and `place` it is about to be sent to the tool process.
        """
        known = self.outputs.get(call.call_id)
        index = len(self.calls) + len(self.outputs) if known is None else known.output_index
        item = FunctionCallOutput(
            id=f"fco_{call.id.removeprefix('fc_')}",
            call_id=call.call_id,
            name=call.name,
            **{"output": "", **fields},
        )
        entry: CallEntry
        if fields["status"] in ("awaiting_consent", "in_progress"):
            entry = ItemAddedEntry(
                response_id=self._response_id,
                output_index=index,
                item=item,
                key=UNSET if key is None else key,
                place=UNSET if place is None else ToolPlace(epoch=place[0], num_begun=place[1]),
            )
        else:
            entry = ItemDoneEntry(response_id=self._response_id, output_index=index, item=item)
        self._take(entry.wire())
        return entry

    def _object(self, place: int) -> FunctionCall:
        return msgspec.convert(self.calls[place].item(), FunctionCall)

    def _take(self, entry: Mapping[str, Any]) -> None:
        kind = entry["type"]
        if kind in (ADDED, ITEM_DONE) and entry["item"]["type"] == OUTPUT:
            self._take_output(entry)
            return
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

    def _take_output(self, entry: Mapping[str, Any]) -> None:
        item = dict(entry["item"])
        output = self.outputs.setdefault(item["call_id"], CallOutput(item, entry["output_index"]))
        output.item = item
        if "key" in entry:
            output.num_sent += 1
            output.key, output.place = entry["key"], entry.get("place")


def num_call_characters(entry: Mapping[str, Any]) -> int:
    """About how long an entry is that tells of a call."""
    item = entry.get("item") or {}
    texts = [entry.get("delta"), entry.get("arguments")]
    texts += [item.get(name) for name in ("arguments", "name", "output")]
    return sum(len(text) for text in texts if isinstance(text, str))
