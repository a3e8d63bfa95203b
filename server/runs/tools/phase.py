"""`ToolPhase`: the calls of an answer that the server carries out, once its model has ended.

The answer stays its owner's meanwhile: lease, takeover, stop and viewers are as while it is
written. Around each call its log has two entries. The first, with key and place of the call, is
stored before the call is sent; so a worker that takes the answer over asks the tool process what
became of it, and never sends it again without knowing that it has not run.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from server.live.hub import Hub
from server.live.retries import until_done
from server.protocol.calls import Call, CallOutput
from server.runs.run import Run
from server.runs.state import RunState
from server.runs.tools.offered import CHAIN_MESSAGES, MAX_ROUNDS, Offered, Past, RunTool
from server.runs.tools.outcomes import (
    NOT_SENT,
    OUTCOME_LINES,
    Outcome,
    failure_of,
    outcome_of,
    refusal,
)
from server.runs.tools.record import CallRecord
from server.tools.messages import Place, ToolError, ToolResult
from sessions.background import start
from sessions.model.errors import StoreUnavailable
from sessions.model.records import Message
from sessions.store.store import SessionStore

if TYPE_CHECKING:
    from server.tools.client import ToolClient

MAX_SHORT_BYTES = 1024  # of an output that is kept although there is no room: a line that refuses
MAX_OUTPUT_BYTES = 128 * 1024  # of all calls of an answer: what a client may give back, too
SAID = {"allow": None, "allow_session": None, "deny": "tool_denied"}  # else time was over


class ToolPhase:
    """The calls of one answer. `client` None: this worker has no tool process to ask."""

    def __init__(
        self,
        run: Run,
        client: "ToolClient | None",
        *,
        store: SessionStore,
        hub: Hub,
        record: CallRecord,
        consent_seconds: float,
        look_seconds: float,
    ) -> None:
        """`consent_seconds` a user has to say whether a call may run; `look_seconds` are between
        two looks for what was said, since the word of it may be lost.
        """
        self._run = run
        self._client = client
        self._store = store
        self._hub = hub
        self._record = record
        self._consent_seconds = consent_seconds
        self._look_seconds = look_seconds
        self._offered = Offered.of(run.response["settings"])
        self._sent: dict[str, tuple[Call, RunTool, float]] = {}  # by key: what may be running
        self._num_bytes = 0  # of outputs
        self._num_calls = Counter[str]()  # by server, since the user's question

    async def carry_out(self) -> None:
        """Return when each call has an outcome, or when the answer is stopped or given up.

        Then calls that run are cancelled at their servers; but not those of an answer that goes on
        at another worker, which asks for them.
        """
        calls = [call for call in self._run.calls.calls if self._is_ours(call)]
        if not calls or self._run.stopping is not None:
            return
        working = start(self._carry_out(calls))
        stopped = start(self._run.stop_asked.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._let_go()
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error

    @property
    def _is_open(self) -> bool:
        """Nobody has stopped the answer, and it is this worker's."""
        return self._run.state is RunState.RUNNING

    def _is_ours(self, call: Call) -> bool:
        return call.status == "completed" and self._offered.is_ours(call.name)

    def _let_go(self) -> None:
        """Of calls that still run: end them, or leave them to who goes on with the answer."""
        sent, self._sent = self._sent, {}
        for key, (call, tool, began) in sent.items():
            assert self._client is not None  # it has sent them
            if self._run.is_elsewhere:
                self._client.leave(key)
                continue
            self._client.cancel(key)
            self._record.ended(self._run, call.name, tool.server, "tool_cancelled", began)

    async def _carry_out(self, calls: Sequence[Call]) -> None:
        past = Past.of(await until_done(self._read_path) or ())
        self._num_calls = past.num_calls
        outputs = self._run.calls.outputs
        self._num_bytes = sum(len(it.item["output"].encode()) for it in outputs.values())
        # Those of an owner before count first, as they did for it.
        known_first = sorted(calls, key=lambda call: call.call_id not in outputs)
        is_over = past.num_rounds >= MAX_ROUNDS
        works = [self._work(call, is_over=is_over) for call in known_first]
        tasks = [start(work) for work in works if work is not None]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_path(self) -> Sequence[Message]:
        """The newest part of the way to what the answer answers, if that is no question."""
        run = self._run
        if run.user_message.role != "tool":
            return ()
        page = await self._store.messages.path(
            None, run.session_id, leaf=run.user_message.id, limit=CHAIN_MESSAGES
        )
        return page.messages

    # ---- one call -------------------------------------------------------------------------------

    def _work(self, call: Call, *, is_over: bool) -> Coroutine[Any, Any, None] | None:
        """What is still to be done for it; None if nothing is. One that is refused is settled."""
        output = self._run.calls.outputs.get(call.call_id)
        tool = self._offered.run_here.get(call.name)
        if output is not None and (output.is_settled or output.is_sent):
            if tool is not None and output.item.get("code") not in NOT_SENT:
                self._num_calls[tool.server] += 1
            return None if output.is_settled or tool is None else self._recall(call, tool, output)
        if tool is None:
            self._settle(call, None, refusal("tool_unknown"))
            return None
        is_asked_for = output is not None  # an owner before has counted it
        if not is_asked_for and (is_over or self._num_calls[tool.server] >= tool.max_calls):
            code = "tool_rounds_exceeded" if is_over else "tool_limit_reached"
            self._settle(call, tool, refusal(code))
            return None
        self._num_calls[tool.server] += 1
        return self._begin(call, tool)

    async def _begin(self, call: Call, tool: RunTool) -> None:
        refused = await self._refusal(call, tool)
        if refused is None:
            await self._send(call, tool)
        else:
            self._settle(call, tool, refusal(refused))

    async def _send(self, call: Call, tool: RunTool) -> None:
        """Run it, once it is stored that it may run from now on."""
        client, run = self._client, self._run
        if client is None:
            line = "the worker that goes on with this answer runs no tools"
            self._settle(call, tool, refusal("tool_server_unavailable", line))
            return
        try:
            place = await client.place()
        except ToolError as error:
            self._settle(call, tool, failure_of(error))
            return
        if not self._is_open:
            return
        known = run.calls.outputs.get(call.call_id)
        num_sent = 0 if known is None else known.num_sent
        key = f"{run.response_id}.{run.calls.calls.index(call)}.{num_sent}"
        self._put(call, tool, status="in_progress", key=key, place=(place.epoch, place.num_begun))
        await run.until_stored(run.sequence_number)
        if not self._is_open:
            return
        await self._outcome(
            call, tool, key, lambda: client.call(key, tool.name, call.arguments.encode())
        )

    async def _recall(self, call: Call, tool: RunTool, output: CallOutput) -> None:
        """What became of a call that another owner has sent, or was about to."""
        client = self._client
        if client is None:
            self._settle(call, tool, refusal("tool_outcome_unknown"))
            return
        place = None if output.place is None else Place(**output.place)

        async def recalled() -> ToolResult:
            try:
                return await client.recall(output.key, place)
            except ToolError as error:
                if error.code != "tool_server_unavailable" or error.is_replayed:
                    raise
                # That is of the asking alone: nobody knows what became of the call.
                line = OUTCOME_LINES["tool_outcome_unknown"]
                raise ToolError("tool_outcome_unknown", line) from error

        try:
            await self._outcome(call, tool, output.key, recalled)
        except _NotStarted:
            await self._send(call, tool)  # under another key: nothing can come of that one

    async def _outcome(
        self, call: Call, tool: RunTool, key: str, ask: Callable[[], Awaitable[ToolResult]]
    ) -> None:
        began = time.monotonic()
        self._sent[key] = (call, tool, began)
        with self._record.running(tool.server):
            try:
                outcome = outcome_of(await ask())
            except ToolError as error:
                if error.code == "tool_not_started":
                    del self._sent[key]
                    raise _NotStarted from error
                outcome = failure_of(error)
        self._sent.pop(key, None)
        self._settle(call, tool, outcome, began)

    # ---- a user's word --------------------------------------------------------------------------

    async def _refusal(self, call: Call, tool: RunTool) -> str | None:
        """Why the call may not run; None if it may. Waits for a user's word if it needs one."""
        if tool.consent == "never":
            return None
        said = asyncio.Event()
        waits = self._run.consent_waits
        waits.add(said)
        try:
            while self._is_open:
                said.clear()
                word, is_granted = await self._said(call, tool)
                if word:
                    return SAID.get(word, "tool_consent_timeout")
                if is_granted and tool.consent == "once":
                    return None
                if not self._is_open:
                    break
                seconds_left = self._seconds_left(call, tool)
                if seconds_left <= 0:
                    return await self._time_over(call)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self._look_seconds, seconds_left)):
                        await said.wait()
            return "tool_cancelled"  # and nobody hears it
        finally:
            waits.discard(said)

    async def _said(self, call: Call, tool: RunTool) -> tuple[str, bool]:
        try:
            return await self._store.runs.said_of_call(
                self._run.response_id, call.call_id, tool.name
            )
        except StoreUnavailable:
            return "", False  # the next look finds it

    def _seconds_left(self, call: Call, tool: RunTool) -> float:
        """Of the time that a user has, who is asked now unless an owner before has asked."""
        timeline, outputs = self._run.timeline, self._run.calls.outputs
        if call.call_id not in outputs:
            expires_at = timeline.now_ms() + round(self._consent_seconds * 1000)
            self._put(
                call, tool, status="awaiting_consent", consent=tool.consent, expires_at=expires_at
            )
        left: int = outputs[call.call_id].item["expires_at"] - timeline.now_ms()
        return left / 1000

    async def _time_over(self, call: Call) -> str | None:
        """Nobody has said anything, unless the store knows better: then that counts."""
        kept = await until_done(
            partial(
                self._store.runs.decide_call, None, self._run.response_id, call.call_id, "timeout"
            )
        )
        word = "timeout" if kept is None else kept.decision
        return SAID.get(word, "tool_consent_timeout")

    # ---- entries --------------------------------------------------------------------------------

    def _settle(
        self, call: Call, tool: RunTool | None, outcome: Outcome, began: float | None = None
    ) -> None:
        """The call is over; of an answer that is stopped, its end says so."""
        if not self._is_open:
            return
        size = len(outcome.output.encode())
        if size > MAX_SHORT_BYTES and self._num_bytes + size > MAX_OUTPUT_BYTES:
            outcome = refusal("tool_result_too_large")
            size = len(outcome.output)
        self._num_bytes += size
        code = {"code": outcome.code} if outcome.code else {}
        self._put(call, tool, status=outcome.status, output=outcome.output, **code)
        server = "" if tool is None else tool.server
        name = "" if tool is None else tool.name
        self._record.ended(self._run, name, server, outcome.word, began)

    def _put(self, call: Call, tool: RunTool | None, **fields: Any) -> None:
        """Number and show what is new of it."""
        server = "" if tool is None else tool.server
        entry = self._run.calls.output(call, server_label=server, **fields)
        self._hub.show(self._run, [self._run.add_object(entry)])


class _NotStarted(Exception):
    """The call that was asked for had not begun, and never will."""
