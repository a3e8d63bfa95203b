"""`ToolRunner`: one worker's part in the calls that answers make: carried out, or ended with them.

And what follows an answer whose calls are carried out: the next round, which the server asks for.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from server.config.intervals import Intervals
from server.live.hub import Hub
from server.protocol.calls import CallOutput
from server.runs.run import Run
from server.runs.state import End
from server.runs.tools.offered import runs_tools
from server.runs.tools.phase import ToolPhase
from server.runs.tools.record import CallRecord
from server.telemetry.metrics import Metrics
from server.tools.messages import Place, ToolError
from sessions.directory.audit import AuditLog
from sessions.model.errors import SessionError
from sessions.model.queue import NextRound
from sessions.model.records import Message
from sessions.store.store import SessionStore

if TYPE_CHECKING:
    from server.tools.client import ToolClient

ABANDON_SECONDS = 1.0  # for the tool process to say that a dead worker's call is over


class ToolRunner:
    """`client` None: there is no tool process here."""

    def __init__(
        self,
        client: "ToolClient | None",
        *,
        store: SessionStore,
        hub: Hub,
        metrics: Metrics,
        intervals: Intervals,
    ) -> None:
        self._client = client
        self._store = store
        self._hub = hub
        self._intervals = intervals
        self._record = CallRecord(hub, metrics, AuditLog(store.client, store.keys))

    async def carry_out(self, run: Run) -> None:
        """The calls of an answer whose model has ended, as far as they are the server's."""
        if not runs_tools(run.response["settings"]):
            return
        phase = ToolPhase(
            run,
            self._client,
            store=self._store,
            hub=self._hub,
            record=self._record,
            consent_seconds=self._intervals.consent,
            look_seconds=self._intervals.promotion,
        )
        with contextlib.suppress(SessionError):  # the answer is lost, or gone: its end says so
            await phase.carry_out()

    def abandon(self, run: Run) -> None:
        """An answer that was taken over ends, and with it the calls that its owner had sent."""
        for output in run.calls.outputs.values():
            if output.is_sent and self._client is not None:
                self._hub.spawn(self._abandon(self._client, output))

    async def _abandon(self, client: "ToolClient", output: CallOutput) -> None:
        """Afterwards it can not even begin: its frame may still be on the way."""
        place = None if output.place is None else Place(**output.place)
        with contextlib.suppress(TimeoutError, ToolError):
            async with asyncio.timeout(ABANDON_SECONDS):
                await client.recall(output.key, place)
        client.cancel(output.key)


def next_round_of(run: Run, end: End, message: Message) -> NextRound | None:
    """What follows an answer by itself: if it has called, and the server has all outputs."""
    if end.status != "completed" or end.reason != "tool_calls" or not message.tool_outputs:
        return None
    called = {it["call_id"] for it in message.tool_calls or () if it["status"] == "completed"}
    if called - {item["call_id"] for item in message.tool_outputs}:
        return None  # the rest is the client's to give
    settings = {**run.response["settings"]}
    # What had to be called has been, and after the last round nothing is.
    is_last = any(it.get("code") == "tool_rounds_exceeded" for it in message.tool_outputs)
    if is_last or settings.get("tool_choice") not in (None, "auto"):
        settings["tool_choice"] = "none" if is_last else "auto"
    headers = {} if run.trace is None else run.trace.headers
    return NextRound(
        response_id=run.response_id,
        message_id=message.id,
        settings=settings,
        priority=run.response.get("priority", 0),
        traceparent=headers.get("traceparent"),
    )
