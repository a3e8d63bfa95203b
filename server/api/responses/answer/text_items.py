"""What is said and what is thought: items with one part, a text, and their events as they grow."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from server.api.responses.answer.emitter import Emitter, delta_form
from server.api.responses.answer.pieces import Pieces

Item = dict[str, Any]
Logprobs = Iterable[Mapping[str, Any]]  # of tokens, as chat.v1 has them


class TextItem:
    """What both have in common."""

    delta_type: str
    done_type: str
    has_logprobs = False

    def __init__(self, item_id: str, output_index: int, emitter: Emitter) -> None:
        self.id = item_id
        self._texts: list[str] = []  # one after the other
        self.logprobs: list[Mapping[str, Any]] = []
        self._emitter = emitter
        self._output_index = output_index
        self._part_place = {"item_id": item_id, "output_index": output_index, "content_index": 0}
        self._form = delta_form(self.delta_type, self._part_place, has_logprobs=self.has_logprobs)
        self._pieces = Pieces()
        self._num_logprobs_emitted = 0
        self._status = "in_progress"
        self._emit_item("added")
        self._emit_part("added")

    @property
    def text(self) -> str:
        """As far as it has come."""
        return "".join(self._texts)

    def add(self, text: str, logprobs: Logprobs = ()) -> None:
        """More of its text. Log probabilities go with the next delta that is sent."""
        self._texts.append(text)
        if self.has_logprobs:
            self.logprobs += logprobs
        self._emit(self._pieces.add(text))

    def close(self, status: str) -> None:
        """Nothing more comes: emit the rest, and all of it."""
        self._emit(self._pieces.end())
        self._status = status
        more = {}
        if self.has_logprobs:
            more = {"logprobs": [_token_logprob(each) for each in self.logprobs]}
        self._emitter.emit(self.done_type, **self._part_place, text=self.text, **more)
        self._emit_part("done")
        self._emit_item("done")

    def item(self) -> Item:
        """As it is now; while it grows, it has no part yet."""
        raise NotImplementedError  # each kind has a shape of its own

    def _part(self, text: str) -> Item:
        raise NotImplementedError  # likewise

    @property
    def _parts(self) -> list[Item]:
        return [] if self._status == "in_progress" else [self._part(self.text)]

    def _emit(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            self._emitter.emit_delta(self._form, piece, self._new_logprobs())

    def _new_logprobs(self) -> Sequence[Item]:
        """Those that no delta has had."""
        if self._num_logprobs_emitted == len(self.logprobs):
            return ()
        new = self.logprobs[self._num_logprobs_emitted :]
        self._num_logprobs_emitted = len(self.logprobs)
        return [_token_logprob(each) for each in new]

    def _emit_item(self, what: str) -> None:
        kind = f"response.output_item.{what}"
        self._emitter.emit(kind, output_index=self._output_index, item=self.item())

    def _emit_part(self, what: str) -> None:
        part = self._part("" if what == "added" else self.text)
        self._emitter.emit(f"response.content_part.{what}", **self._part_place, part=part)


class WordsItem(TextItem):
    """What is said."""

    delta_type = "response.output_text.delta"
    done_type = "response.output_text.done"
    has_logprobs = True

    def item(self) -> Item:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": self._status,
            "content": self._parts,
        }

    def _part(self, text: str) -> Item:
        logprobs = [_part_logprob(each) for each in self.logprobs]
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class ThoughtItem(TextItem):
    """What a model thinks: all of it, and no summary."""

    delta_type = "response.reasoning_text.delta"
    done_type = "response.reasoning_text.done"

    def item(self) -> Item:
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [],
            "content": self._parts,
            "status": self._status,
        }

    def _part(self, text: str) -> Item:
        return {"type": "reasoning_text", "text": text}


def _token_logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One token's, in an event."""
    top = [{"token": each["token"], "logprob": each["logprob"]} for each in entry["top"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}


def _part_logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same in a part, which has bytes, too."""
    return {**_with_bytes(entry), "top_logprobs": [_with_bytes(each) for each in entry["top"]]}


def _with_bytes(entry: Mapping[str, Any]) -> dict[str, Any]:
    token = entry["token"]
    return {"token": token, "bytes": list(token.encode()), "logprob": entry["logprob"]}
