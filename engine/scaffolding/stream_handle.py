"""`StreamHandle`: one answer in the making, read in pieces, and asked for again when it stalls.

It keeps the answer so far, so that a second attempt continues after it: the engine gets the tokens
that have come, and sends only what follows.
"""

import asyncio
import secrets
import time
import uuid
from typing import Any

import msgspec

from engine.client.async_llm import AsyncLLM
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.inputs import Prompt
from engine.errors import (
    EngineGenerateError,
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
)
from engine.outputs import CompletionOutput, OutputError, RequestOutput
from engine.sampling_params import SamplingParams

BACK_OFF_SECONDS = 0.5  # before the first new attempt, twice as long before each further one
REFUSED_FOR_NOW = (RetryableRequestError, QueueOverflowError, MaxQueuedTokensError)


class StreamHandle:
    """The worker's hold on one request; letting go of it aborts the request.

    With `stall_seconds` an attempt that is silent for so long, while a reader waits, is aborted,
    and after a pause the next one is sent, `max_retries` times at most. A place in the queue that
    moves, or a prompt being read, is a sign of life too.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        prompt: Prompt,
        params: SamplingParams,
        *,
        stall_seconds: float | None = None,
        max_retries: int = 2,
    ) -> None:
        seed = secrets.randbits(63) if params.seed is None else params.seed
        self.completion = CompletionOutput(index=0, text="", token_ids=[])  # all of it, so far
        self.error: OutputError | None = None
        self.finished = False
        self._engine = engine
        self._prompt = prompt
        self._params = msgspec.structs.replace(params, seed=seed)  # the same in every attempt
        self._stall_seconds = stall_seconds
        self._retries_left = max_retries
        self._back_off = BACK_OFF_SECONDS
        self._send_at = 0.0
        self._request_id = ""
        self._collector: RequestOutputCollector | None = None  # None: not sent yet, or not again
        self._silence = _Silence()
        self._earlier_logprob = 0.0  # of the attempts before this one

    async def submit(self) -> None:
        """Send the request, with what has come already as the beginning of the answer."""
        request_id = f"task-{uuid.uuid4().hex}"
        collector = await self._engine.add_request(
            request_id,
            self._prompt,
            self._params,
            resume_token_ids=self.completion.token_ids,
            on_progress=self._silence.end if self._stall_seconds is not None else None,
        )
        self._request_id, self._collector = request_id, collector
        self._earlier_logprob = self.completion.cumulative_logprob or 0.0

    async def read(self) -> None:
        """Wait for something new. Raises `EngineGenerateError` when the last attempt stalls."""
        while not self.finished:
            if self._collector is None:
                await asyncio.sleep(max(self._send_at - time.monotonic(), 0.0))
                await self._submit_again()
            elif await self._next_output():
                return

    async def read_nowait(self) -> None:
        """Take what is there after one turn of the event loop, or see that it stalls."""
        await asyncio.sleep(0)
        if self._collector is None:
            if time.monotonic() >= self._send_at:
                await self._submit_again()
        elif (output := self._collector.get_nowait()) is not None:
            self._take(output)
        elif self._has_stalled():
            self._give_up_attempt()

    async def abort(self) -> None:
        """End the request and take all that it had generated until now."""
        if self._collector is not None:
            await self._engine.abort(self._request_id)
            while not self.finished:
                self._take(await self._collector.get())
        self.finished, self.error = True, None
        self.completion.finish_reason = "abort"  # also if it had just ended, unseen

    def close(self) -> None:
        """Let go of the request. Idempotent."""
        if self._collector is not None:
            self._collector.close()

    async def _next_output(self) -> bool:
        """Whether an output has come; without one the attempt has been given up, or lives on."""
        assert self._collector is not None
        try:
            async with asyncio.timeout(self._patience()):
                output = await self._collector.get()
        except TimeoutError:
            if self._has_stalled():
                self._give_up_attempt()
            return False
        self._take(output)
        return True

    def _take(self, output: RequestOutput) -> None:
        self._silence.end()
        self.error = output.error
        self.finished = output.finished
        for delta in output.outputs:
            self.completion.extend(delta)
            if delta.cumulative_logprob is not None:
                self.completion.cumulative_logprob = (
                    self._earlier_logprob + delta.cumulative_logprob
                )

    def _patience(self) -> float | None:
        """Seconds until silence means that it stalls."""
        if self._stall_seconds is None:
            return None
        return max(self._stall_seconds - self._silence.seconds(), 0.0)

    def _has_stalled(self) -> bool:
        return self._patience() == 0.0

    def _give_up_attempt(self) -> None:
        self._silence.end()
        self.close()
        self._collector = None
        self._plan_retry(f"nothing was generated for {self._stall_seconds:g} s")

    async def _submit_again(self) -> None:
        try:
            await self.submit()
        except REFUSED_FOR_NOW as refusal:
            self._plan_retry(str(refusal))

    def _plan_retry(self, problem: str) -> None:
        if self._retries_left == 0:
            raise EngineGenerateError(problem)
        self._retries_left -= 1
        self._send_at = time.monotonic() + self._back_off
        self._back_off *= 2


class _Silence:
    """How long nothing was heard. An object of its own, because the engine holds it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def end(self, *_: Any) -> None:
        """Something was heard; the next silence begins when somebody listens."""
        self._since = None

    def seconds(self) -> float:
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since
