"""`Producer`: carries one answer from the engine to its viewers and into the store.

What the engine says is numbered, and reaches this worker's viewers, in the turn of the event loop
in which the core's message came: `_take_delta` is called for each token. The `LogWriter` stores it
later. The engine waits for neither sockets nor Redis. What follows its last output is the
`Finisher`'s task.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import structlog

from server.config.intervals import Intervals
from server.engines.client import (
    EngineClient,
    EngineDeadError,
    EngineError,
    Logprob,
    ModelLoadError,
    OutputError,
    ParsedArguments,
    ParsedBegin,
    ParsedEnd,
    Placing,
    RequestOutput,
    RequestProgress,
    SamplingParams,
    ValidationError,
)
from server.engines.models import Models
from server.generation.answers import (
    AnswerReader,
    CallPart,
    Part,
    Said,
    schemas_of,
)
from server.generation.logprobs import token_logprobs
from server.generation.prompts import PromptBuilder
from server.generation.sampling import has_form, must_call, offered_tools, sampling_params
from server.live.hub import Hub
from server.live.response_log import reasoning_of, text_of
from server.protocol.errors import ApiError
from server.protocol.objects import Engine, Reason
from server.protocol.server_frames import (
    InProgressEntry,
    ResponseProgress,
)
from server.runs.finisher import Finisher
from server.runs.log_writer import LogWriter, lose
from server.runs.quotas.group_tokens import hold_for_run
from server.runs.resuming import unsaid
from server.runs.run import Run
from server.runs.state import End, end_of_error
from server.runs.stop import Stop, StoredStop
from server.runs.tools.runner import ToolRunner
from server.runs.waiting import QueueEstimate, Waiting, store_retry
from server.telemetry.metrics import Metrics
from sessions.model.errors import ResponseNotFound, StoreUnavailable
from sessions.model.events import ObjectEvent, TextEvent
from sessions.model.replies import Finished
from sessions.store.appends.appender import Appender
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

FLUSH_SECONDS = 0.025  # between two text events of one answer; the first goes at once
PROGRESS_SECONDS = 1.0  # between two `response.progress`
LATE_REFUSALS: Mapping[str, Reason] = {  # of models that were not loaded when they were asked
    "output_format_refused": "output_format_refused",
    "thinking_not_supported": "thinking_not_supported",
    "tools_not_supported": "tools_not_supported",
}


class Producer:
    """Runs one answer. `run.done` is set when `response.done` was published."""

    def __init__(
        self,
        run: Run,
        *,
        appender: Appender,
        store: SessionStore,
        engine: EngineClient,
        prompts: PromptBuilder,
        hub: Hub,
        metrics: Metrics,
        intervals: Intervals,
        has_peers: Callable[[], bool] = lambda: False,
        queue: QueueEstimate | None = None,
        cache_salt: str = "",
        max_seconds: float = 0.0,
        models: Models | None = None,
        tools: ToolRunner | None = None,
    ) -> None:
        self._run = run
        self._tools = tools
        self._models = models  # None: there is one, which is there as long as the server is
        self._cache_salt = cache_salt  # one for each user
        self._max_seconds = max_seconds  # for writing the answer, over all its owners; 0: no limit
        self._store = store
        self._engine = engine
        self._prompts = prompts
        self._hub = hub
        self._metrics = metrics
        self._intervals = intervals
        self._silence = intervals.silence  # looked at for each token
        self._queue = queue or QueueEstimate()
        self._has_peers = has_peers
        run.must_be_silent = self._must_be_silent
        self._writer = LogWriter(
            run,
            appender=appender,
            store=store,
            intervals=intervals,
            hub=hub,
            on_stop=self.stop_as_stored,
            on_loss=self._lose,
        )
        self.waiting = Waiting(
            run,
            store=store,
            engine=engine,
            hub=hub,
            estimate=self._queue,
            models=models,
            engine_seconds=intervals.restart,
        )
        self._progress_at = 0.0  # when `response.progress` was sent
        self._last_text_at: float | None = None
        self._window_ends = 0.0  # until then, new text waits for more
        self._flush_timer: asyncio.TimerHandle | None = None  # while there is some
        self._reader: AnswerReader | None = None  # None: all that the engine says is text
        self._new_parts: list[Said] = []
        self._new_token_ids: list[int] = []
        self._new_logprobs: list[dict[str, Any]] = []

    def _must_be_silent(self) -> bool:
        """Whether somebody might have taken the answer over, or may before we hear of it."""
        return time.monotonic() > self._run.renewed_at + self._silence and self._has_peers()

    async def produce(self, queued_behind: int = 0) -> Finished | None:
        """The answer's whole life: wait for its turn, ask the engine, store and show what it says.

        `queued_behind`: how many answers of the session come first. Returns what
        `Finisher.finish` does.
        """
        run = self._run
        try:
            async with self._writer.running():
                if queued_behind:
                    await self.waiting.turn(queued_behind, self._intervals.promotion)
                    if run.trace is not None:
                        run.trace.passed("turn")
                if queued_behind or run.fence > 1:  # another answer, or owner, came before
                    await self._ask_place()
                with self._using():
                    end = await self._answer()
                end = await self._carry_out_calls(end)
        except ApiError as error:  # what it was to answer makes no prompt by now
            logger.warning("no prompt", response_id=run.response_id, code=error.code)
            reason: Reason = LATE_REFUSALS.get(error.code, "engine_error")
            end = End("failed", reason, "released", message=error.message)
        except ModelLoadError as error:
            logger.warning("model not loaded", model=error.model, error=error.problem, **run.ids)
            end = End("failed", "model_unavailable", "released")
        except Exception:
            logger.exception("run failed", response_id=run.response_id)
            end = End("failed", "engine_error", "unknown")
        finisher = Finisher(
            run,
            store=self._store,
            hub=self._hub,
            metrics=self._metrics,
            queue=self._queue,
            writer=self._writer,
        )
        return await finisher.finish(end)

    # ---- the prompt -----------------------------------------------------------------------------

    def _using(self) -> AbstractContextManager[None]:
        """Its model is not let go between prompt and last token, however long that takes."""
        if self._models is None:
            return contextlib.nullcontext()
        return self._models.using(self._run.response.get("model", ""))

    async def _answer(self) -> End:
        """From the prompt to the engine's last output."""
        run, settings = self._run, self._run.response["settings"]
        if run.has_outputs:  # its model had ended when another worker began with its calls
            return run.end("stop", None, "released")
        if run.prompt is None and run.stopping is None:
            await self.waiting.engine()  # it knows how long a prompt may be
            self._know_model()
            while run.prompt is None and run.stopping is None:
                await self._read_prompt()
            if run.trace is not None:
                run.trace.passed("prompt")
        if run.prompt is None:
            return run.end("abort", None, "released")
        if run.known_prompt_hash not in (None, run.prompt.hash):
            return End("incomplete", "owner_lost", "unknown")
        token_ids = run.prompt.token_ids
        room = self._engine.model_config.max_model_len - len(token_ids)
        max_tokens = min(settings["max_output_tokens"], room)
        if (group := run.group) is not None:
            budgets = self._store.budgets
            end = await hold_for_run(budgets, run, group, len(token_ids), max_tokens)
            if end is not None:
                return end
        max_tokens = run.within_budget(max_tokens)
        chat_stop = self._engine.get_tokenizer().chat_stop
        params = sampling_params(settings, max_tokens, chat_stop, run.base, run.prompt.call_form)
        return await self.generate(token_ids, params)

    async def _carry_out_calls(self, end: End) -> End:
        """What the server is to call goes on in the same answer; a stop ends it as any."""
        run = self._run
        if end.reason != "tool_calls" or self._tools is None:
            return end
        await self._tools.carry_out(run)
        return end if run.stopping is None else run.end("abort", None, end.engine)

    async def _read_prompt(self) -> None:
        """An answer that was promised waits for a store that is away, until somebody stops it."""
        run, asked = self._run, self._run.user_message
        settings = run.response["settings"]
        try:
            run.set_prompt(
                await self._prompts.build(
                    run.uid,
                    run.session_id,
                    asked.parent_id,
                    asked.text,
                    settings,
                    run.base,
                    asked.outputs,
                )
            )
        except StoreUnavailable:  # not `until_done`: a stop ends this wait at once
            await store_retry(run)

    # ---- from the engine ------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], params: SamplingParams) -> End:
        """Take the engine's outputs until its last one; never raises for what the engine does.

        An answer that has token ids already continues after them.
        """
        run = self._run
        if run.stopping is not None:  # stopped before the engine heard of it
            return run.end("abort", None, "released")
        await self.waiting.engine()
        if run.stopping is not None:
            return run.end("abort", None, "released")
        run.num_prompt_tokens = len(token_ids)
        if not (self._engine.answer_grammar.is_plain or has_form(run.response["settings"])):
            settings = run.response["settings"]
            tools = schemas_of(offered_tools(settings))
            self._reader = AnswerReader(
                self._engine, token_ids, tools, must_call=must_call(settings)
            )
        if run.token_ids and not self._take_up(token_ids, params):
            return End("incomplete", "owner_lost", "released")
        self._tell_place()
        finish_reason, stop_reason, confirmed = "error", None, True
        error: OutputError | None = None
        try:
            outputs = self._engine.generate(
                {"prompt_token_ids": token_ids, "cache_salt": self._cache_salt},
                params,
                run.response_id,
                resume_token_ids=list(run.token_ids),
                priority=run.response.get("priority", 0),
                lora_request=None if run.model is None else run.model.lora_request,
                is_admitted=True,  # the answer was promised: a queue that is full by now takes it
                on_progress=self._on_progress,
                on_delta=self._take_delta,
                trace_headers=None if run.trace is None else run.trace.headers,
                marks=None if self._reader is None else self._reader.marks,
                session_id=run.session_id,
            )
            async for output in outputs:
                self._take(output)
                if output.finished:
                    answer = output.outputs[0]
                    finish_reason = answer.finish_reason or "error"
                    stop_reason = answer.stop_reason
                    confirmed = output.metrics is None or output.metrics.core_confirmed
                    error = output.error
                    if error is not None:
                        logger.warning("engine error", code=error.code, **run.ids)
        except (EngineError, ValidationError) as failure:
            # Not in a core, or in one that is dead and holds no blocks: released in any case.
            if isinstance(failure, ValidationError):
                error = OutputError("invalid_request", str(failure))
            logger.warning(
                "generation failed",
                error=type(failure).__name__,
                dead=isinstance(failure, EngineDeadError),
                **run.ids,
            )
        finally:
            self._note_place()
            if self._reader is not None:
                rest = self._reader.finish()
                if finish_reason == "length":  # a call that is cut is incomplete, as after a stop
                    rest = [part for part in rest if not _is_broken(part)]
                self._new_parts += rest
            self._flush()  # the last text does not wait for the window's end
        if run.stopping is not None and confirmed:
            run.timeline.note("aborted_at")
        engine: Engine = "released" if confirmed else "unknown"
        if error is not None and run.stopping is None:
            return end_of_error(error, engine, has_form=params.structured_outputs is not None)
        return run.end(finish_reason, stop_reason, engine)

    async def _ask_place(self) -> None:
        """Which of several engines wrote the session's last answer, by now."""
        if isinstance(self._engine, Placing):
            with contextlib.suppress(StoreUnavailable):
                self._run.place = (await self._store.responses.live(self._run.session_id)).place

    def _tell_place(self) -> None:
        """That engine may have written it for another worker."""
        name, _, model = (self._run.place or "").partition(" ")
        if name and model == self._run.response.get("model") and isinstance(self._engine, Placing):
            self._engine.know_place(self._run.session_id, name)

    def _note_place(self) -> None:
        """For the session's next answer. A name of an engine has no spaces."""
        if isinstance(self._engine, Placing):
            name = self._engine.place_of(self._run.session_id)
            self._run.place = name and f"{name} {self._run.response.get('model', '')}"

    def _take_up(self, token_ids: list[int], params: SamplingParams) -> bool:
        """Show what another worker's tokens say beyond its text; False if they say another text."""
        run, reader = self._run, self._reader
        marks = None if reader is None else reader.marks
        said = self._engine.resumed_text(token_ids, params, run.token_ids, marks)
        parts: list[Said] = [Part(said)] if reader is None else reader.feed(said)
        # What is stored already, of each kind: the tokens must say it again.
        known = text_of(run.events), reasoning_of(run.events), run.calls.calls
        rest = unsaid(parts, *known)
        if rest is None and reader is not None:
            # An older version knows nothing of thoughts: all that the engine said is text.
            self._reader = None
            parts = [Part(self._engine.resumed_text(token_ids, params, run.token_ids, None))]
            rest = unsaid(parts, *known)
        if rest is None:
            logger.error("stored tokens do not spell the stored text", **run.ids)
            return False
        self._add_parts(rest, [])
        return True

    def _know_model(self) -> None:
        """What its files say may not have been known when the answer began."""
        run = self._run
        if run.model is not None and not run.model.fingerprint and self._models is not None:
            run.model = self._models.served.get(run.model.name, run.model)

    # ---- its words, to the viewers --------------------------------------------------------------

    def _take(self, output: RequestOutput) -> None:
        """What an engine yields: its last output, or all of them."""
        self._note_cached(output.num_cached_tokens)
        self._run.warnings = output.warnings or self._run.warnings
        self._run.counts = output.counts or self._run.counts
        if output.metrics is not None:
            self._run.num_resubmits = output.metrics.num_resubmits
            self._run.timeline.first_decoded = output.metrics.first_token_ts or None
        for answer in output.outputs:
            self._take_delta(answer.text, answer.token_ids, answer.logprobs)

    def _take_delta(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, Logprob]] | None = None,
    ) -> None:
        """Show new text at once, or with what else comes until `FLUSH_SECONDS` after the last.

        Called for each token of each answer, so it makes no task and no future.
        """
        now = time.monotonic()
        if token_ids:
            timeline = self._run.timeline
            if timeline.first_token is None:
                self._note_first_token(now)
            timeline.last_token = now
            self._new_token_ids += token_ids
            if logprobs:
                self._new_logprobs += token_logprobs(logprobs, token_ids)
        self._new_parts += [Part(text)] if self._reader is None else self._reader.feed(text)
        if now >= self._window_ends:
            self._flush()
        elif self._flush_timer is None:
            delay = self._window_ends - now
            self._flush_timer = asyncio.get_running_loop().call_later(delay, self._flush)
        if self._max_seconds:
            self._check_deadline(now)
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self._show_progress()

    def _note_first_token(self, now: float) -> None:
        self._start()
        timeline = self._run.timeline
        timeline.first_token = now
        timeline.note("first_token_at")
        model = self._run.response.get("model", "")
        if self._models is not None:
            model = self._models.base(model).name  # without its adapter
        self._metrics.first_token.observe(now - timeline.created)
        self._metrics.model_first_token.labels(model).observe(now - timeline.created)

    def _flush(self) -> None:
        """Number what has come and show it to the viewers; after a stop it only counts."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        parts, token_ids, logprobs = self._new_parts, self._new_token_ids, self._new_logprobs
        if not token_ids and not parts:
            return
        self._new_parts, self._new_token_ids, self._new_logprobs = [], [], []
        self._add_parts(parts, token_ids, logprobs)

    def _show_progress(self) -> None:
        """Tell the viewers here how fast it is; a stop has the last word."""
        run = self._run
        rate = run.timeline.tokens_per_s(len(run.token_ids))
        if rate is not None and run.stopping is None:
            frame = ResponseProgress(
                response_id=run.response_id, output_tokens=len(run.token_ids), tokens_per_s=rate
            )
            self._hub.put_unnumbered(run.response_id, frame)

    def _check_deadline(self, now: float) -> None:
        """An answer that takes too long keeps what it has, and may be continued."""
        run = self._run
        begun = run.timeline.scheduled
        if begun is None or now - begun < self._max_seconds:
            return
        self._flush()
        if run.stop(Stop("policy", "deadline")):
            self._hub.spawn(self._engine.abort(run.response_id))

    def _add_parts(
        self,
        parts: Sequence[Said],
        token_ids: Sequence[int],
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Number and show parts; the tokens count with the first entry, so that the store never
        has a text without the tokens that say it.
        """
        if len(parts) == 1 and isinstance(part := parts[0], Part):  # what comes most often
            self._add_text(part.text, token_ids, logprobs, is_reasoning=part.is_reasoning)
            return
        for kind, alike in groupby(parts or [Part("")], _kind):
            if kind is None:
                self._add_calls([part for part in alike if not isinstance(part, Part)], token_ids)
            else:
                text = "".join(part.text for part in alike if isinstance(part, Part))
                self._add_text(text, token_ids, logprobs, is_reasoning=kind)
            token_ids, logprobs = [], ()

    def _add_calls(self, parts: Sequence[CallPart], token_ids: Sequence[int]) -> None:
        run = self._run
        if not run.take_tokens(token_ids):
            return
        for place, alike in groupby(parts, _arguments_of):
            if place is None:
                for part in alike:
                    if isinstance(part, ParsedBegin):
                        self._show(run.add_call_entries([run.calls.begin(part.name)]))
                    elif not isinstance(part, ParsedArguments):
                        ends = run.calls.end(part.index, is_valid=part.is_valid)
                        self._show(run.add_call_entries(ends))
            else:
                delta = "".join(each.delta for each in alike if isinstance(each, ParsedArguments))
                self._show(run.add_call_entries([run.calls.add(place, delta)]))

    def _add_text(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[dict[str, Any]],
        *,
        is_reasoning: bool,
    ) -> None:
        add = self._run.add_reasoning if is_reasoning else self._run.add_text
        event = add(text, token_ids, logprobs)
        if event is not None:
            self._show([event])

    def _show(self, events: Sequence[TextEvent | ObjectEvent]) -> None:
        if not events:
            return
        now = time.monotonic()
        self._window_ends = now + FLUSH_SECONDS
        if self._last_text_at is not None:
            self._metrics.inter_event.observe(now - self._last_text_at)
        self._last_text_at = now
        self._hub.show(self._run, list(events))

    # ---- its progress, and stops ----------------------------------------------------------------

    def _note_cached(self, num_tokens: int | None) -> None:
        """What another core finds in its cache later is no part of the prompt's price."""
        if num_tokens is not None and not self._run.is_started:
            self._run.num_cached_tokens = num_tokens

    def _on_progress(self, progress: RequestProgress) -> None:
        run = self._run
        self._note_cached(progress.num_cached_tokens)
        if progress.scheduled:
            self._start()
        elif progress.queue_position is not None and run.stopping is None:
            self.waiting.show_place(progress)

    def _start(self) -> None:
        """`response.in_progress`, once."""
        run = self._run
        if run.is_started or run.stopping is not None:
            return
        run.timeline.scheduled = time.monotonic()
        run.timeline.note("started_at")
        self.waiting.over()
        event = run.add_object(
            InProgressEntry(
                response_id=run.response_id,
                omitted_messages=run.prompt.omitted_messages if run.prompt else 0,
                prompt_tokens=run.num_prompt_tokens,
                cached_tokens=run.num_cached_tokens,
                queue_ms=round((run.timeline.scheduled - run.timeline.created) * 1000),
            )
        )
        self._hub.show(self._run, [event])

    async def stop_as_stored(self, stored: StoredStop | None = None) -> None:
        """A stop reached the store through another worker: the owner hears of it here.

        `stored` is what the other worker sent of it; without it the store is asked.
        """
        run = self._run
        if stored is None:
            try:
                record = await self._store.runs.get(None, run.response_id)
            except (StoreUnavailable, ResponseNotFound):
                return  # the next append says so again
            stop = Stop.stored(record.cancel_by, record.cancel_reason, record.seen_sequence_number)
            stored = StoredStop(stop, record.cancel_at)
        if run.stop(stored.stop):
            run.timeline.note("cancel_at", stored.at_ms)
            run.mark_stop_stored()
            await self._engine.abort(run.response_id)

    def _lose(self, error: Exception) -> None:
        """What the engine would still say is nobody's to hear."""
        lose(self._run, error)
        self._hub.spawn(self._engine.abort(self._run.response_id))


def _kind(part: Said) -> bool | None:
    """What is joined: text (False), thoughts (True); None: something of a call."""
    return part.is_reasoning if isinstance(part, Part) else None


def _is_broken(part: Said) -> bool:
    """Whether it ends a call that is not whole."""
    return isinstance(part, ParsedEnd) and not part.is_valid


def _arguments_of(part: CallPart) -> int | None:
    """Of which call they are, if that is what it says."""
    return part.index if isinstance(part, ParsedArguments) else None
