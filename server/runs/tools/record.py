"""`CallRecord`: where a call is seen besides the chat: metrics, the answer's trace, the audit log.

None of them has arguments or results: those are users' and strangers' words.
"""

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from server.live.hub import Hub
from server.live.retries import until_done
from server.runs.run import Run
from server.telemetry.metrics import Metrics
from sessions.directory.audit import AuditLog

ACTION = "tool.call"  # in the audit log


class CallRecord:
    """One worker's."""

    def __init__(self, hub: Hub, metrics: Metrics, audit: AuditLog) -> None:
        self._hub = hub
        self._metrics = metrics
        self._audit = audit

    @contextlib.contextmanager
    def running(self, server: str) -> Iterator[None]:
        """While a call runs there."""
        gauge = self._metrics.tool_calls_running.labels(server)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def ended(self, run: Run, tool: str, server: str, outcome: str, began: float | None) -> None:
        """A call is over. `tool` and `server` are empty of a name that nobody has offered, `began`
        is None of a call that was never sent.
        """
        now = time.monotonic()
        seconds = 0.0 if began is None else now - began
        self._metrics.count_tool_call(server, outcome, None if began is None else seconds)
        if run.trace is not None:
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "parley.tool.server": server,
                "parley.tool.outcome": outcome,
            }
            run.trace.part("execute_tool", now if began is None else began, now, attributes)
        words = (run.response_id, server or "-", tool or "-", outcome, f"{seconds * 1000:.0f} ms")
        write = partial(
            self._audit.write,
            actor=run.uid,
            action=ACTION,
            target=run.session_id,
            reason=" ".join(words),
        )
        self._hub.spawn(_written(write))


async def _written(write: "partial[Any]") -> None:
    await until_done(write)
