"""Calls of tools as items: those that a client answers, and those that the server carries out."""

from collections.abc import Mapping
from typing import Any

from server.api.responses.answer.emitter import Emitter, delta_form
from server.api.responses.answer.pieces import Pieces

Item = dict[str, Any]
STOPPED = "the call was stopped; the tool may have run"


class CallItem:
    """A call that the client answers."""

    events = "response.function_call_arguments"

    def __init__(
        self, item_id: str, output_index: int, emitter: Emitter, call: Mapping[str, Any]
    ) -> None:
        """`call` has chat.v1's `call_id` and `name`."""
        self.id = item_id
        self.call_id = str(call["call_id"])
        self.arguments = ""
        self._name = str(call["name"])
        self._emitter = emitter
        self._output_index = output_index
        self._place = {"item_id": item_id, "output_index": output_index}
        self._form = delta_form(f"{self.events}.delta", self._place)
        self._pieces = Pieces()
        self._status = "in_progress"
        self._emit_item("added")

    def add(self, delta: str) -> None:
        """More of its arguments."""
        self.arguments += delta
        for piece in self._pieces.add(delta):
            self._emitter.emit_delta(self._form, piece)

    def close(self, status: str) -> None:
        """All arguments are there, or no more will come."""
        self._emit_arguments()
        self._status = status
        self._emit_item("done")

    def item(self) -> Item:
        """As it is now."""
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self.call_id,
            "name": self._name,
            "arguments": self.arguments,
            "status": self._status,
        }

    def _emit_arguments(self) -> None:
        for piece in self._pieces.end():
            self._emitter.emit_delta(self._form, piece)
        self._emitter.emit(f"{self.events}.done", **self._place, arguments=self.arguments)

    def _emit_item(self, what: str) -> None:
        kind = f"response.output_item.{what}"
        self._emitter.emit(kind, output_index=self._output_index, item=self.item())


class ServerCallItem(CallItem):
    """A call that the server carries out. What becomes of it is sent after the model has ended."""

    events = "response.mcp_call_arguments"

    def __init__(
        self,
        item_id: str,
        output_index: int,
        emitter: Emitter,
        call: Mapping[str, Any],
        server_label: str,
    ) -> None:
        self._server_label = server_label
        self._output: str | None = None
        self._problem: str | None = None
        super().__init__(item_id, output_index, emitter, call)

    def close(self, status: str) -> None:
        self._emit_arguments()
        self._status = "calling" if status == "completed" else status
        self._emitter.emit("response.mcp_call.in_progress", **self._place)

    def settle(self, output: Mapping[str, Any] | None) -> None:
        """`output` is chat.v1's item of what has become of it; None: it never came to that."""
        status = "" if output is None else output["status"]
        if output is None:
            self._status = "incomplete"
        elif status == "completed":
            self._status, self._output = "completed", output["output"]
        else:
            is_known = status in ("failed", "denied", "unknown")
            self._status = "failed"
            self._problem = output["output"] if is_known else STOPPED
        end = "completed" if status == "completed" else "failed"
        self._emitter.emit(f"response.mcp_call.{end}", **self._place)
        self._emit_item("done")

    def item(self) -> Item:
        error = None
        if self._problem is not None:
            error = {"type": "mcp_tool_execution_error", "content": self._problem}
        return {
            "id": self.id,
            "type": "mcp_call",
            "server_label": self._server_label,
            "name": self._name,
            "arguments": self.arguments,
            "output": self._output,
            "error": error,
            "status": self._status,
        }
