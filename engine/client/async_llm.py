"""`AsyncLLM`: the engine as a program sees it; `generate` streams, `abort` stops.

    library     AsyncLLM.from_engine_args(args) starts a core of its own, blocking until it is ready
    connected   AsyncLLM.connect(address, model=folder) joins the core that a supervisor watches

Call-compatible with vLLM's class of the same name. Use one instance from one event loop at a time.
It owns no task; left without `shutdown()` it keeps no interpreter alive and leaves no child.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from engine.beam_search import BeamSearchParams
from engine.client.args import EngineArgs
from engine.client.control import EngineControl
from engine.client.holding.call_form import call_form
from engine.client.holding.thoughts import thought_tokens
from engine.client.lora.adapters import check_lora
from engine.client.parsing.calls import Tools
from engine.client.parsing.formats import FORMATS, grammar_of
from engine.client.parsing.grammar import Field, Grammar
from engine.client.parsing.marks import AddedToken, Marks
from engine.client.parsing.parser import AnswerParser
from engine.client.parts import EngineParts, constructor_args, release, start_parts
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.core_client import MAX_GAP_SECONDS, CoreClient, StateCallback
from engine.client.requests.core_connection import STALL_SECONDS, CoreConnection
from engine.client.requests.core_link import CoreLink
from engine.client.requests.inputs import (
    Prompt,
    bad_word_ids,
    check_callbacks,
    check_marks,
    check_order,
    check_params,
    check_pooling,
    check_rank,
    check_request_id,
    check_tokenization,
    checked_ids,
    parse_prompt,
    tokens_prompt,
)
from engine.client.requests.outgoing import check_extra_args
from engine.client.requests.request_state import (
    DeltaCallback,
    ProgressCallback,
    create_states,
    new_detokenizer,
)
from engine.client.results.generation_result import GenerationResult
from engine.client.search.beam_search import BeamSearches, check_search
from engine.client.text.tokenizer import Tokenizer
from engine.errors import ValidationError, refuse
from engine.grammar.params import StructuredOutputsParams, as_sent
from engine.grammar.thoughts import ThoughtTokens
from engine.lora import LoRARequest
from engine.outputs import RequestOutput
from engine.pooling import PoolingParams, PoolingRequestOutput
from engine.sampling_params import SamplingParams
from engine.tracing.request_trace import end_traces

if TYPE_CHECKING:
    from engine.tracing.tracing import Tracing

logger = logging.getLogger(__name__)

PROMPT_END_TOKENS = 256  # in which a prompt begins the answer
MAX_TURN_SECONDS = 0.05  # of sending the answers to one prompt, before the event loop gets a turn


class AsyncLLM(EngineControl):
    """An engine. Made by `from_engine_args`, `connect` or a call, ended by `shutdown`."""

    _answer_format: str | None = None  # that was named; None: what the checkpoint says

    def __init__(
        self,
        worker_use_ray: bool = False,
        engine_use_ray: bool = False,
        *args: Any,
        log_requests: bool = True,
        max_log_len: int | None = None,
        start_engine_loop: bool = True,
        log_stats: bool = True,
        usage_context: Any = None,
        stat_loggers: Any = None,
        _parts: EngineParts | None = None,
        **kwargs: Any,
    ) -> None:
        """Start a core as `from_engine_args` does: `args` and `kwargs` are `AsyncEngineArgs`'.

        The arguments are those of vLLM's earlier engine, which logged each request by default.
        Raises `NotImplementedError` for Ray and for vLLM's config objects, by name.
        """
        if _parts is None:
            given: dict[str, Any] = {
                "enable_log_requests": log_requests,
                "max_log_len": max_log_len,
                "disable_log_stats": not log_stats,
            }
            engine_args = constructor_args(worker_use_ray, engine_use_ray, args, given | kwargs)
            _parts = start_parts(engine_args)
        super().__init__(_parts)
        self._searches = BeamSearches(_parts.client)
        self._release = weakref.finalize(
            self, release, os.getpid(), _parts.client.link, *_parts.owned
        )
        if stat_loggers:
            self._stat_loggers.add_all(stat_loggers, self.vllm_config)

    # ---- start and end

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: Any = None,
    ) -> "AsyncLLM":
        """Start a core and block until it takes requests. Needs no event loop.

        Raises `UnsupportedModelError` if the model's folder cannot be served, also because its chat
        template is broken or, in a trial, leaves its bounds; `EngineStartError` with the core's
        last log lines, `DownloadError` if `model` is a hub id that cannot be fetched.
        `stat_loggers` are for `do_log_stats`: loggers by name, or factories that are called with
        `(vllm_config, 0)`. The two arguments before it are vLLM's, and without effect.
        """
        return cls(_parts=start_parts(engine_args), stat_loggers=stat_loggers)

    @classmethod
    def connect(
        cls,
        address: str | CoreLink,
        *,
        model: str,
        served_model_name: str | None = None,
        tokenizer: str | Tokenizer | None = None,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        on_core_state: StateCallback | None = None,
        stall_seconds: float = STALL_SECONDS,
        resubmit: bool = True,
        restart_seconds: float = MAX_GAP_SECONDS,
        tracing: "Tracing | None" = None,
        answer_format: str | None = None,
    ) -> "AsyncLLM":
        """Join a core that somebody else starts and watches; it may not be there yet.

        `address` is that of a core of ours; or it is a link to another engine, which knows itself
        when that stalls.
        `model` is the local folder (for the tokenizer: `UnsupportedModelError` if it has none).
        `tokenizer` is another folder for it, or one that has been read.
        Joining begins in the running event loop, or with the first call that has one.
        `on_core_state(state, reason)` is called on that loop whenever `core_state` changes.

        When the core dies, new requests raise `RetryableRequestError` until the next one is there.
        Open ones are sent to it with their tokens so far, and their streams go on with the same
        text; a stream ends with finish reason `error` if two cores in a row died before it had
        another token, or if there is none for 60 s: for `restart_seconds`, if the last one had to
        end. Without `resubmit` they raise `EngineDeadError`. `tracing` gets the spans of requests,
        and stays open after `shutdown`.
        `answer_format` names that of `answer_grammar`, even if the checkpoint says another.
        """
        if answer_format is not None and answer_format not in FORMATS:
            raise refuse("answer_format", answer_format, f"must be one of {', '.join(FORMATS)}")
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = Tokenizer(tokenizer or model)
        own_tokenizer = tokenizer
        own_tokenizer.chat_template.start()
        link = address
        if isinstance(link, str):
            link = CoreConnection(link, reconnect=True, stall_seconds=stall_seconds)
        client = CoreClient(
            link,
            own_tokenizer,
            reconnect=True,
            resubmit=resubmit,
            restart_seconds=restart_seconds,
            max_num_queued_reqs=max_num_queued_reqs,
            max_num_queued_tokens=max_num_queued_tokens,
            on_core_state=on_core_state,
        )
        engine = cls(
            _parts=EngineParts(
                client=client,
                tokenizer=own_tokenizer,
                model=model,
                served_model_name=served_model_name or model,
                health_seconds=stall_seconds,
                tracing=tracing,
            )
        )
        engine._answer_format = answer_format
        with contextlib.suppress(RuntimeError):  # no event loop yet
            client.attach()
        return engine

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine, and the core if it is ours; open streams raise `EngineDeadError`.

        Blocks until the core has ended, which is killed after `timeout` seconds, by default those
        of `AsyncEngineArgs.shutdown_timeout`. Idempotent.
        """
        self._client.shut_down("the engine was shut down")
        self._client.link.close()
        self.tokenizer.close()
        self._end_core(timeout)

    async def start_background_loop(self) -> None:
        """Join the running event loop, as the first request would. `EngineDeadError` if dead."""
        if self.errored:
            raise self._death
        self._client.attach()

    async def shutdown_background_loop(self) -> None:
        """As `shutdown`, without blocking the event loop meanwhile."""
        self._client.shut_down("the engine was shut down")
        self._client.link.close()
        self.tokenizer.close()
        await asyncio.to_thread(self._end_core)

    def _end_core(self, timeout: float | None = None) -> None:
        if detached := self._release.detach():
            _, _, arguments, _ = detached
            limit = self._parts.shutdown_timeout if timeout is None else timeout
            release(*arguments, timeout=limit)

    # ---- requests

    def check_params(self, params: SamplingParams) -> None:
        """Raise the `ValidationError` that `generate` would raise for parameters alone."""
        known = self._client.ready
        check_params(params, self._parts.max_logprobs, None if known is None else known.vocab_size)
        self._client.link.check(params)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: Any,
        prompt_token_ids: list[int] | None = None,
        lora_request: LoRARequest | None = None,
        prefix_pos: int | None = None,
        *,
        on_progress: ProgressCallback | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a prompt; the last output has `finished` True.

        Nothing happens before the first iteration, and errors of the arguments appear there.
        Leaving the stream in any way (break and `aclose`, cancellation) aborts the request. After
        `abort()` one last output with finish reason "abort" and the partial text comes.
        `on_progress` is called on the event loop while the request waits and its prompt is read.
        `options` are the keyword arguments of `add_request`.
        """
        if isinstance(request_id, SamplingParams):
            message = "generate() takes prompt, sampling_params, request_id, in this order"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            prompt, sampling_params, request_id = sampling_params, request_id, prompt  # type: ignore[assignment]
        if prefix_pos is not None:
            message = "prefix_pos has no effect: prefixes are cached automatically"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        stream = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            prompt_token_ids=prompt_token_ids,
            lora_request=lora_request,
            on_progress=on_progress,
            **options,
        )
        try:
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            stream.close()

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: Any,
        prompt_token_ids: list[int] | LoRARequest | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Any = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yield one output, the embedding of a prompt; `PoolingParams` says which.

        Nothing happens before the first iteration, and errors of the arguments appear there, as in
        `generate`. Leaving the stream in any way aborts the request. After `abort()` the output has
        finish reason "abort" and no numbers. `trace_headers` name the caller's span, as those of
        `add_request`. `options` are `arrival_time`, `on_progress` and `reasoning_ended`, which is
        vLLM's, and without effect.
        """
        if isinstance(prompt_token_ids, LoRARequest):
            prompt_token_ids, lora_request = None, prompt_token_ids
        if not isinstance(pooling_params, PoolingParams):
            raise refuse("pooling_params", pooling_params, "must be PoolingParams")
        stream = await self.add_request(
            request_id,
            prompt,
            pooling_params,
            prompt_token_ids=prompt_token_ids,
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            **options,
        )
        try:
            output: Any = await stream.get()
            yield output
        finally:
            stream.close()

    async def beam_search(
        self,
        prompt: Prompt,
        request_id: Any,
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        trace_headers: Any = None,
        *,
        priority: int = 0,
        is_admitted: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield one output: the best answers that a beam search finds, the best one first.

        Each beam is a request of one token in each step. Nothing happens before the first
        iteration, and errors of the arguments appear there, as in `generate`. Leaving the stream
        ends the search. After `abort()` the output has the best beams so far. With `is_admitted`
        also its first request is queued however many wait.
        """
        parsed = parse_prompt(prompt)
        self._client.check_admission(may_wait=is_admitted)
        check_search(params, self._parts.max_logprobs, self.ready)
        options = {
            "lora_request": lora_request,
            "trace_headers": trace_headers,
            "priority": priority,
            "is_admitted": is_admitted,
        }
        with self._searches.open(request_id, params, self, options) as run:
            ids = parsed.token_ids
            if ids is None:
                ids = await self._tokenize(parsed.text or "", {}, parsed.cache_salt)
            yield await run.run(tokens_prompt(parsed, ids), self.ready, self.tokenizer)

    async def add_request(
        self,
        request_id: Any,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        prompt_token_ids: list[int] | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Any = None,
        prompt_adapter_request: Any = None,
        priority: int = 0,
        *,
        prompt_text: str | None = None,
        resume_token_ids: Sequence[int] | None = None,
        is_admitted: bool = False,
        on_progress: ProgressCallback | None = None,
        on_delta: DeltaCallback | None = None,
        marks: Marks | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        session_id: str | None = None,
        kv_hints: Any = None,
        data_parallel_rank: int | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> RequestOutputCollector:
        """Send a request and return the reader's end of it, which iterates over its outputs.

        With `PoolingParams` there is one output, a `PoolingRequestOutput`. The id is taken at once
        and free again after the end or an `abort`. Cancelling this call leaves nothing behind;
        letting go of what it returns aborts the request. With `resume_token_ids` the answer
        continues after tokens that an earlier run has shown. With `is_admitted` it is queued
        however many wait: `check_admission` was asked before. By position the arguments have the
        order of vLLM's earlier engine. `on_delta(text, token_ids, logprobs)` is called on the event
        loop with what is new of a single answer in deltas, in the turn in which the core's message
        came: then the reader gets the last output alone. With `marks` the text of such an answer is
        marked text, which `AnswerParser` reads. `trace_headers` name the caller's span by
        the W3C's `traceparent` and `tracestate`; malformed ones are ignored, and so are all while
        tracing is off. The arguments from `session_id` on are vLLM's, and without effect. Raises
        `ValidationError` for wrong arguments, `RetryableRequestError` while there is no core,
        `QueueOverflowError` and `MaxQueuedTokensError` when too much is waiting.
        """
        check_request_id(request_id)
        parsed = parse_prompt(prompt, prompt_token_ids, prompt_text)
        check_tokenization(tokenization_kwargs, parsed.token_ids)
        arrival_time = parsed.arrival_time if arrival_time is None else arrival_time
        check_order(priority, arrival_time)
        check_rank(data_parallel_rank)
        resume_token_ids = checked_ids("resume_token_ids", resume_token_ids) or []
        check_callbacks(on_progress, on_delta, params)
        check_marks(marks, params)
        if isinstance(params, SamplingParams | PoolingParams):
            params = params.clone()  # which checks again what may have been set since
        if prompt_adapter_request is not None:
            raise NotImplementedError("prompt_adapter_request is not implemented")
        num_answers = 1
        known = self._client.ready
        check_lora(lora_request, known)
        if isinstance(params, PoolingParams):
            check_pooling(resume_token_ids)
        else:
            vocab_size = None if known is None else known.vocab_size
            check_params(params, self._parts.max_logprobs, vocab_size)
            num_answers = params.n
        if num_answers > 1 and resume_token_ids:
            raise ValidationError("resume_token_ids need n = 1", "n", num_answers)
        self._client.check_admission(num_answers, may_wait=is_admitted)
        self._client.attach()
        if isinstance(params, SamplingParams):
            params = self._complete_params(params)
        collector = RequestOutputCollector(params.output_kind, request_id)
        states = create_states(
            request_id,
            params,
            collector,
            prompt=parsed.text,
            arrival_time=arrival_time,
            on_progress=on_progress,
            on_delta=on_delta,
            marks=marks,
        )
        self._parts.trace(states, trace_headers, arrival_time)
        self.output_processor.add(*states)
        try:
            token_ids = parsed.token_ids
            if token_ids is None:
                token_ids = await self._tokenize(
                    parsed.text or "", tokenization_kwargs or {}, parsed.cache_salt
                )
            if isinstance(params, SamplingParams) and params.thinking_token_budget is not None:
                thoughts = self.thought_tokens(token_ids)
                for state in states:
                    state.params = msgspec.structs.replace(state.params, thought_tokens=thoughts)
            lora = None
            if lora_request is not None:
                lora = await self._adapters.resolve(lora_request)
            if self._parts.log_requests:
                logger.info(
                    "request %s: n=%d, prompt tokens %d", request_id, num_answers, len(token_ids)
                )
            turn_ends = time.monotonic() + MAX_TURN_SECONDS
            for state in states:  # few without a break between them: they will share a prefill
                if time.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + MAX_TURN_SECONDS
                if not state.has_ended:  # it may have been aborted meanwhile
                    self._client.submit(
                        state,
                        token_ids,
                        resume_token_ids=resume_token_ids,
                        priority=priority,
                        cache_salt=parsed.cache_salt,
                        lora=lora,
                        is_admitted=is_admitted,
                    )
        except BaseException as error:
            end_traces(states, error)
            self._client.leave(*states)
            raise
        collector.call_on_close(lambda: self._client.leave(*states))
        return collector

    def generate_async(
        self,
        inputs: Prompt,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        *,
        priority: int = 0,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> GenerationResult:
        """TensorRT-LLM's way to ask: see `GenerationResult`, whose reading raises all errors.

        With `streaming` it may be read as the answer grows. Call it in the engine's event loop, or
        give that as `loop`.
        """
        return GenerationResult(
            self,
            inputs,
            sampling_params or SamplingParams(),
            is_streaming=streaming,
            loop=loop,
            lora_request=lora_request,
            prompt_adapter_request=prompt_adapter_request,
            priority=priority,
        )

    @cached_property
    def answer_grammar(self) -> Grammar:
        """How thoughts and calls are written in the answers to chats, as the checkpoint says."""
        tokenizer = self.tokenizer
        return grammar_of(
            tokenizer.chat_template.source if tokenizer.has_chat_template else "",
            itertools.starmap(AddedToken, tokenizer.added_tokens),
            tokenizer.response_template,
            self._answer_format,
        )

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        """The end of a prompt as marked text, in which the answer may have begun."""
        ids = list(prompt_token_ids[-PROMPT_END_TOKENS:])
        return new_detokenizer(self.tokenizer, [], SamplingParams(), marks).resume(ids)

    def call_form(
        self, tools: Tools, name: str | None = None, prompt_token_ids: Sequence[int] = ()
    ) -> StructuredOutputsParams:
        """The form of an answer to this prompt that calls the tool `name`, or any of `tools`.

        That is a thought, where the model's format has some, and then a call; where its models
        write several in a row, and none is named, one or more. `tools` are their names, with the
        JSON schemas of their arguments. Raises `ValidationError` with the parameter `tool_choice`
        for a format whose calls cannot be held, and `tools` for such a schema; whether a schema
        can be compiled the end of a request says. `RetryableRequestError` while there is no core.
        """
        ends = self.ready.eos_token_ids
        thought = self._thought_of(prompt_token_ids)
        return call_form(self.answer_grammar, tools, name, thought=thought, end_token_ids=ends)

    def thought_tokens(self, prompt_token_ids: Sequence[int]) -> ThoughtTokens:
        """Between which tokens the model thinks in its answer to this prompt.

        Raises `ValidationError` if its thoughts cannot be ended, and `RetryableRequestError` while
        there is no core.
        """
        return thought_tokens(
            self.answer_grammar,
            lambda text: self.tokenizer.encode(text, add_special_tokens=False),
            thought=self._thought_of(prompt_token_ids),
            end_token_ids=self.ready.eos_token_ids,
        )

    def _thought_of(self, prompt_token_ids: Sequence[int]) -> Field | None:
        """The thought that a prompt has begun."""
        grammar = self.answer_grammar
        end = self.prompt_end(prompt_token_ids, grammar.marks)
        return AnswerParser(grammar, prompt=end).thought

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        """The text that a request with these `resume_token_ids` counts as shown.

        The stream of such a request continues after it, held-back text and stop strings included.
        """
        ids, ready = list(resume_token_ids), self._client.ready
        if ids and ready is not None and not params.ignore_eos and ids[-1] in ready.eos_token_ids:
            if marks is None or ids[-1] not in marks.characters:
                ids.pop()  # the token that ended the answer has no text
        return new_detokenizer(self.tokenizer, prompt_token_ids, params, marks).resume(ids)

    async def abort(self, request_id: Any, internal: bool = False) -> None:
        """End a request, or each of several; unknown and ended ids are ignored.

        Acts before it first yields: no further token is taken, the id is free. The reader gets its
        last output once the core has freed the request's blocks, after one second at the latest.
        """
        is_one = isinstance(request_id, str) or not isinstance(request_id, Iterable)
        for each in [request_id] if is_one else list(request_id):
            self._searches.abort(each)
            self._client.abort(each, internal=internal)

    # ---- helpers

    def _complete_params(self, params: SamplingParams) -> SamplingParams:
        """With a seed, so that the same request can be sent again."""
        words, form = params.bad_words, params.structured_outputs
        return msgspec.structs.replace(
            params,
            seed=secrets.randbits(63) if params.seed is None else params.seed % (1 << 64),
            stream_interval=params.stream_interval or self._parts.stream_interval,
            bad_words_token_ids=bad_word_ids(words, self.tokenizer) if words else None,
            structured_outputs=None if form is None else as_sent(form),
            extra_args=self._sent_args(params),
        )

    def _sent_args(self, params: SamplingParams) -> dict[str, Any] | None:
        """For the core's logits processors; without any, they are the caller's alone."""
        ready = self._client.ready
        if ready is None or not ready.config.logits_processors:
            return None
        check_extra_args(params)
        return params.extra_args

    async def _tokenize(self, text: str, options: dict[str, Any], owner: str) -> list[int]:
        return await self.tokenizer.encode_async(
            text,
            options.get("add_special_tokens", True),
            max_length=self.ready.max_model_len,
            owner=owner,
        )


AsyncLLMEngine = AsyncLLM
