"""`BeamSearchRun`: a beam search in a core, with one request of one token for each beam and step.

The beams of a step are read in one batch, and the prefix cache has all full blocks before their
last tokens. Requests go on in the next core like any others when one dies; between two steps the
search itself waits for it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from engine.beam_search import Beam, BeamSearch, BeamSearchParams
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.core_client import MAX_GAP_SECONDS, CoreClient
from engine.client.requests.inputs import TokensPrompt, check_request_id
from engine.client.requests.request_state import new_detokenizer, new_internal_id, new_metrics
from engine.client.text.detokenizer import Decoder
from engine.errors import RetryableRequestError, ValidationError, refuse
from engine.ipc import Ready
from engine.logprobs import Logprob
from engine.outputs import CompletionOutput, OutputError, RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams


class Engine(Protocol):
    """What a search asks of `AsyncLLM`."""

    @property
    def add_request(self) -> Callable[..., Awaitable[RequestOutputCollector]]: ...

    async def wait_ready(self, timeout: float | None = None) -> None: ...


class BeamSearchRun:
    """One search. `run` gives its one output, also after `abort`."""

    def __init__(
        self,
        request_id: Any,
        params: BeamSearchParams,
        engine: Engine,
        client: CoreClient,
        options: Mapping[str, Any],
    ) -> None:
        """`options` are those of `add_request`."""
        self.request_id = request_id
        self._params = params
        self._engine = engine
        self._client = client
        self._options = options
        self.name = new_internal_id(request_id)  # which no other request has
        self._open_ids: list[str] = []
        self._metrics = new_metrics(None)
        self._num_cached_tokens: int | None = None
        self._is_aborted = False
        self._aborted = asyncio.Event()
        self._error: OutputError | None = None

    def abort(self) -> None:
        """End it with the beams that it has: no further token is taken."""
        self._is_aborted = True
        self._aborted.set()
        for request_id in self._open_ids:
            self._client.abort(request_id)

    async def run(self, prompt: TokensPrompt, ready: Ready, decoder: Decoder) -> RequestOutput:
        """Search, and return the result. However it is left, its requests end."""
        num_slots = min(ready.max_model_len, ready.num_blocks * ready.block_size)
        room = max(1, num_slots - len(prompt["prompt_token_ids"]))  # too long a prompt is refused
        max_tokens = min(self._params.max_tokens, room)
        search = BeamSearch(self._params, ready.eos_token_ids, max_tokens)
        while not (search.is_done or self._is_aborted or self._error):
            candidates = await self._step(prompt, search.beams)
            if candidates is not None:
                search.expand(candidates)
        return self._output(prompt, search.best(), decoder)

    async def _step(
        self, prompt: TokensPrompt, beams: list[Beam]
    ) -> list[Mapping[int, Logprob]] | None:
        """What may follow each beam; None after an abort or an error."""
        place = len(beams[0].token_ids)
        params = _step_params(self._params, place)
        self._open_ids = [f"{self.name}-{place}-{number}" for number in range(len(beams))]
        streams: list[RequestOutputCollector] = []
        try:
            for request_id, beam in zip(self._open_ids, beams, strict=True):
                ids = [*prompt["prompt_token_ids"], *beam.token_ids]
                longer = {**prompt, "prompt_token_ids": ids}
                stream = await self._submit(request_id, longer, params, is_first=place == 0)
                if stream is None:
                    return None
                streams.append(stream)
            outputs = [await stream.get() for stream in streams]
        except RetryableRequestError:  # a pause has ended what was open: so it does the search
            if place == 0:
                raise
            self._is_aborted = True
            return None
        finally:
            for stream in streams:
                stream.close()
            self._open_ids = []
        for output in outputs:
            self._note(output)
        if self._is_aborted or self._error:
            return None
        return [logprobs[0] for output in outputs if (logprobs := output.outputs[0].logprobs)]

    async def _submit(
        self, request_id: str, prompt: Any, params: SamplingParams, *, is_first: bool
    ) -> RequestOutputCollector | None:
        """None if the search has ended. Only its first request may be refused."""
        if not is_first:
            self._options = {**self._options, "is_admitted": True}
        while not (self._is_aborted or self._error):
            try:
                return await self._engine.add_request(request_id, prompt, params, **self._options)
            except RetryableRequestError:
                if is_first:
                    raise
                await self._wait_for_core()
            except ValidationError as error:
                if is_first or self._options.get("lora_request") is None:
                    raise
                self._error = OutputError("lora_unavailable", f"{error}")
        return None

    async def _wait_for_core(self) -> None:
        """Return when there is one, when there was none for too long, or after an abort."""
        ready = asyncio.ensure_future(self._engine.wait_ready(MAX_GAP_SECONDS))
        aborted = asyncio.ensure_future(self._aborted.wait())
        try:
            await asyncio.wait((ready, aborted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborted.cancel()
            is_ready = ready.done() or not ready.cancel()
        if is_ready:
            try:
                ready.result()
            except TimeoutError:
                self._error = OutputError("engine_error", "no engine core for too long")

    def _note(self, output: RequestOutput) -> None:
        completion, of_step = output.outputs[0], output.metrics
        if output.lora_request is not None:  # with its hash: other files would be another search
            self._options = {**self._options, "lora_request": output.lora_request}
        self._is_aborted |= completion.finish_reason == "abort"
        self._error = self._error or output.error
        if self._num_cached_tokens is None:
            self._num_cached_tokens = output.num_cached_tokens
        if of_step is None:
            return
        metrics = self._metrics
        metrics.scheduled_ts = metrics.scheduled_ts or of_step.scheduled_ts
        metrics.first_token_ts = metrics.first_token_ts or of_step.first_token_ts
        metrics.last_token_ts = of_step.last_token_ts
        metrics.num_preemptions += of_step.num_preemptions
        metrics.num_resubmits += of_step.num_resubmits
        metrics.num_generation_tokens += of_step.num_generation_tokens
        metrics.core_confirmed &= of_step.core_confirmed

    def _output(self, prompt: TokensPrompt, beams: list[Beam], decoder: Decoder) -> RequestOutput:
        metrics = self._metrics
        if metrics.first_token_ts:
            metrics.first_token_latency = metrics.first_token_ts - metrics.queued_ts
        return RequestOutput(
            request_id=self.request_id,
            prompt=prompt.get("prompt"),
            prompt_token_ids=list(prompt["prompt_token_ids"]),
            prompt_logprobs=None,
            outputs=[self._completion(*each, prompt, decoder) for each in enumerate(beams)],
            finished=True,
            metrics=metrics,
            lora_request=self._options.get("lora_request"),
            num_cached_tokens=self._num_cached_tokens,
            error=self._error,
        )

    def _completion(
        self, index: int, beam: Beam, prompt: TokensPrompt, decoder: Decoder
    ) -> CompletionOutput:
        params = SamplingParams(skip_special_tokens=self._params.skip_special_tokens)
        detokenizer = new_detokenizer(decoder, prompt["prompt_token_ids"], params)
        text, _ = detokenizer.feed(beam.token_ids)
        completion = CompletionOutput(
            index=index,
            text=text + detokenizer.finish(),
            token_ids=list(beam.token_ids),
            cumulative_logprob=beam.cumulative_logprob,
            logprobs=beam.logprobs,
            finish_reason="stop",
            stop_reason=beam.stop_token,
        )
        if beam.stop_token is None:
            is_whole = not (self._is_aborted or self._error)
            completion.finish_reason = "length" if is_whole else "error" if self._error else "abort"
        return completion


class BeamSearches:
    """The open searches of an engine. Their ids are taken from those of its requests."""

    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._runs: dict[str, BeamSearchRun] = {}

    @contextlib.contextmanager
    def open(
        self, request_id: Any, params: BeamSearchParams, engine: Engine, options: Mapping[str, Any]
    ) -> Iterator[BeamSearchRun]:
        """A search until it has ended. `ValidationError` if its id is none, or in use."""
        check_request_id(request_id)
        run = BeamSearchRun(request_id, params, engine, self._client, options)
        self._client.requests.hold_id(request_id, run.name)
        self._runs[str(request_id)] = run
        try:
            yield run
        finally:
            self._discard(run)

    def abort(self, request_id: Any) -> None:
        """End a search, if that is what has this id, which is then free. See `AsyncLLM.abort`."""
        if (run := self._runs.get(str(request_id))) is not None:
            self._discard(run)
            run.abort()

    def _discard(self, run: BeamSearchRun) -> None:
        self._client.requests.release_id(run.request_id, run.name)
        if self._runs.get(str(run.request_id)) is run:
            del self._runs[str(run.request_id)]


def check_search(params: Any, max_logprobs: int, ready: Ready) -> None:
    """Refuse a search that this engine cannot make."""
    if not isinstance(params, BeamSearchParams):
        raise refuse("params", params, "must be BeamSearchParams")
    params.__post_init__()  # which checks again what may have been set since
    if params.allowed_token_ids is not None:
        if max(params.allowed_token_ids) >= ready.vocab_size:
            problem = f"must be below the vocabulary's size, {ready.vocab_size}"
            raise refuse("allowed_token_ids", params.allowed_token_ids, problem)
    elif max_logprobs != -1 and 2 * params.beam_width > max_logprobs:
        problem = f"beam_width must be at most {max_logprobs // 2}, half of max_logprobs"
        raise ValidationError(problem, "beam_width", params.beam_width)
    if ready.config.logprobs_mode.endswith("logits"):
        raise ValidationError("beam_search needs logprobs, and this engine gives logits", "params")


def _step_params(params: BeamSearchParams, place: int) -> SamplingParams:
    """Of each request of a step: twice as many candidates as beams, should each beam end, too."""
    allowed = params.allowed_token_ids
    return SamplingParams(
        max_tokens=1,
        temperature=params.temperature,
        seed=place,
        ignore_eos=True,
        logprobs=2 * params.beam_width if allowed is None else 0,
        logprob_token_ids=allowed,
        skip_special_tokens=params.skip_special_tokens,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
