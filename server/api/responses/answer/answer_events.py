"""`AnswerEvents`: one answer's entries, as chat.v1 has them, as events of OpenAI's Responses.

It begins at the beginning, always with the same numbers: the same answer, cut into other deltas,
read again or rebuilt from its message, gives the same events. Who wants those after some number
leaves the others out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from server.api.items.ids import call_item_id, server_call_item_id
from server.api.responses.answer.call_items import CallItem, ServerCallItem
from server.api.responses.answer.emitter import AnswerEvent, Emitter
from server.api.responses.answer.item_ids import thought_item_id, words_item_id
from server.api.responses.answer.response_object import Outcome, response_object
from server.api.responses.answer.text_items import TextItem, ThoughtItem, WordsItem
from server.live.response_log import CALLS, MAX_STRETCHES, REASONING_DELTA, THOUGHTS, WORDS
from server.protocol.calls import ADDED, ARGUMENTS, ITEM_DONE, OUTPUT
from server.protocol.entries import is_final
from sessions.model.events import Event, TextEvent

DONE: Final = "response.done"
OPEN: Final = ("awaiting_consent", "in_progress")  # states of a call that the server carries out


class Held(NamedTuple):
    """Something that waits to be emitted; `place` is that of the call that it is of."""

    emit: Callable[[], None]
    place: int | None = None


def no_server(name: str) -> str | None:
    """For answers that are offered no tools of the server's."""
    return None


class AnswerEvents:
    """`begin`, `take` and `end` give the events that are certain then."""

    def __init__(
        self,
        asked: Mapping[str, Any],
        message_id: str,
        server_of: Callable[[str], str | None] = no_server,
    ) -> None:
        """`asked` is what `response_object` takes; `message_id` is of the message that the answer
        becomes. `server_of` gives the label of the server that carries out a tool, by its name.
        """
        self.outcome: Outcome | None = None
        self._asked = asked
        self._message_id = message_id
        self._server_of = server_of
        self._emitter = Emitter()
        self._items: list[TextItem | CallItem] = []
        self._calls: list[CallItem] = []
        self._outputs: dict[str, Mapping[str, Any]] = {}  # by the call's id, as they are now
        self._num_settled = 0  # of the server's calls
        self._open: TextItem | CallItem | None = None
        self._held: list[Held] = []  # what comes before the open call is done
        self._late: dict[str, list[Held]] = {THOUGHTS: [], WORDS: [], CALLS: []}
        self._num_late_from = 0  # calls before this one are emitted as they come
        self._stretch = ""  # of which kind the newest part was
        self._num_stretches = 0
        response = self.response()
        self._emitter.emit("response.created", response=response)
        self._emitter.emit("response.in_progress", response=response)

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    @property
    def num_emitted(self) -> int:
        """So many events were given."""
        return self._emitter.num_emitted

    def response(self) -> dict[str, Any]:
        """The object as it is now."""
        return response_object(self._asked, self.output(), self.outcome)

    def output(self) -> list[dict[str, Any]]:
        """Its items as they are now."""
        return [item.item() for item in self._items]

    def begin(self) -> list[AnswerEvent]:
        """The events before all that is said."""
        return self._emitter.take()

    # ---- as it comes ----------------------------------------------------------------------------

    def take(self, event: Event) -> list[AnswerEvent]:
        """The next entry of the answer's log; one that says nothing here is skipped."""
        if self.is_over:
            return []
        if isinstance(event, TextEvent):
            self._add_words(event.delta, event.logprobs)
        else:
            self._take_object(event.data)
        return self._emitter.take()

    def _take_object(self, frame: Mapping[str, Any]) -> None:
        kind = frame["type"]
        if kind == REASONING_DELTA:
            self._add_thought(frame["delta"])
        elif kind in (ADDED, ITEM_DONE) and frame["item"]["type"] == OUTPUT:
            self._take_output(frame["item"])
        elif kind == ADDED:
            self._begin_call(frame["item"])
        elif kind == ARGUMENTS:
            self._add_arguments(frame["output_index"], frame["delta"])
        elif kind == ITEM_DONE:
            self._end_call(frame["output_index"], frame["item"]["status"])
        elif kind == DONE and is_final(frame):
            self._end(outcome_of(frame["response"]))

    def _add_words(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> None:
        is_in_order = self._stretch == WORDS and self._num_stretches <= MAX_STRETCHES
        if is_in_order and isinstance(self._open, WordsItem):  # what comes most often
            self._open.add(text, logprobs)
        elif text:
            self._in_order(WORDS, lambda: self._words().add(text, logprobs))

    def _add_thought(self, text: str) -> None:
        if text:
            self._in_order(THOUGHTS, lambda: self._thought().add(text))

    def _begin_call(self, call: Mapping[str, Any]) -> None:
        self._in_order(CALLS, lambda: self._call(call))
        self._num_late_from += not self._late[CALLS]

    def _add_arguments(self, place: int, delta: str) -> None:
        self._of_call(place, lambda: self._calls[place].add(delta))

    def _end_call(self, place: int, status: str) -> None:
        self._of_call(place, lambda: self._close(_call_status(status)))

    def _of_call(self, place: int, emit: Callable[[], None]) -> None:
        if place < self._num_late_from:
            self._later(Held(emit, place))
        else:
            self._late[CALLS].append(Held(emit, place))

    def _in_order(self, kind: str, emit: Callable[[], None]) -> None:
        """What changes too often comes at the end, sorted: no message keeps its order."""
        if self._stretch != kind:
            self._stretch = kind
            self._num_stretches += 1
        if self._num_stretches > MAX_STRETCHES:
            self._late[kind].append(Held(emit))
        else:
            self._later(Held(emit))

    def _later(self, held: "Held") -> None:
        """Now, or when the call that is open is done, if this is nothing of its own."""
        if self._may_emit(held):
            held.emit()
        else:
            self._held.append(held)
        self._emit_held()

    def _may_emit(self, held: "Held") -> bool:
        is_open = isinstance(self._open, CallItem)
        return not is_open or held.place == len(self._calls) - 1

    def _emit_held(self) -> None:
        while self._held and self._may_emit(self._held[0]):
            self._held.pop(0).emit()

    # ---- items ----------------------------------------------------------------------------------

    def _words(self) -> TextItem:
        if isinstance(self._open, WordsItem):
            return self._open
        place = sum(isinstance(item, WordsItem) for item in self._items)
        return self._begin_text(WordsItem, words_item_id(self._message_id, place))

    def _thought(self) -> TextItem:
        if isinstance(self._open, ThoughtItem):
            return self._open
        place = sum(isinstance(item, ThoughtItem) for item in self._items)
        return self._begin_text(ThoughtItem, thought_item_id(self._message_id, place))

    def _begin_text(self, kind: type[TextItem], item_id: str) -> TextItem:
        self._close("completed")
        item = kind(item_id, len(self._items), self._emitter)
        self._items.append(item)
        self._open = item
        return item

    def _call(self, call: Mapping[str, Any]) -> None:
        self._close("completed")
        place, index = len(self._calls), len(self._items)
        label = self._server_of(call["name"])
        if label is None:
            item_id = call_item_id(self._message_id, place)
            item = CallItem(item_id, index, self._emitter, call)
        else:
            item_id = server_call_item_id(self._message_id, place)
            item = ServerCallItem(item_id, index, self._emitter, call, label)
        self._items.append(item)
        self._calls.append(item)
        self._open = item

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._open.close(status)
            self._open = None

    def _take_output(self, output: Mapping[str, Any]) -> None:
        """Outcomes are emitted in the order of the calls, whichever comes first."""
        self._outputs[output["call_id"]] = output
        self._end_items(is_whole=True)  # calls are carried out when their model has ended
        self._settle(only_known=True)

    def _settle(self, *, only_known: bool) -> None:
        calls = [call for call in self._calls if isinstance(call, ServerCallItem)]
        for call in calls[self._num_settled :]:
            output = self._outputs.get(call.call_id)
            if only_known and (output is None or output["status"] in OPEN):
                return
            call.settle(output)
            self._num_settled += 1

    # ---- its end --------------------------------------------------------------------------------

    def end(self, outcome: Outcome) -> list[AnswerEvent]:
        """Nothing more comes."""
        self._end(outcome)
        return self._emitter.take()

    def _end(self, outcome: Outcome) -> None:
        self._end_items(is_whole=outcome.status == "completed")
        self._settle(only_known=False)
        self.outcome = outcome
        self._emitter.emit(outcome.event_type, response=self.response())

    def _end_items(self, *, is_whole: bool) -> None:
        """The model says nothing more. What is open is whole if its answer is, but for a call."""
        for kind in (THOUGHTS, WORDS, CALLS):
            for held in self._late[kind]:
                self._later(held)
            self._late[kind] = []
        while self._held:
            self._close("incomplete")
            self._emit_held()
        is_whole = is_whole and not isinstance(self._open, CallItem)
        self._close("completed" if is_whole else "incomplete")


def outcome_of(response: Mapping[str, Any]) -> Outcome:
    """Of the object of `response.done`."""
    details = response.get("status_details") or {}
    ended_at = (response.get("timings") or {}).get("done_at")
    return Outcome(
        response["status"],
        details.get("reason", ""),
        details.get("message", ""),
        response.get("usage"),
        None if ended_at is None else ended_at / 1000,
    )


def _call_status(status: str) -> str:
    return "completed" if status == "completed" else "incomplete"
