"""`RequestOutputCollector`: where the outputs of one request wait for their reader."""

import asyncio
from collections.abc import Callable
from typing import Any

from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """The reader's end of one request: at most one output waits in it, later ones merge into it.

    Iterate it, or call `get`. `close`, or letting go of it, aborts the request if it still runs.
    """

    def __init__(self, output_kind: RequestOutputKind, request_id: Any) -> None:
        self.request_id = request_id
        self.output: RequestOutput | Exception | None = None
        self.ready = asyncio.Event()
        self._aggregate = output_kind == RequestOutputKind.DELTA
        self._has_ended = False
        self._on_close: Callable[[], None] | None = None

    def put(self, output: RequestOutput | Exception) -> None:
        """Add an output; an exception takes the place of what waits."""
        if isinstance(output, RequestOutput) and isinstance(self.output, RequestOutput):
            self.output.add(output, aggregate=self._aggregate)
        elif not isinstance(self.output, Exception):
            self.output = output
            self.ready.set()

    async def get(self) -> RequestOutput:
        """The waiting output, or the next one. May be cancelled; no output is lost by it."""
        while (output := self.get_nowait()) is None:
            await self.ready.wait()
        return output

    def get_nowait(self) -> RequestOutput | None:
        """The waiting output, or None. Raises what ended the stream, if that is what waits."""
        output, self.output = self.output, None
        self.ready.clear()
        if isinstance(output, Exception):
            self._has_ended = True
            raise output
        if output is not None:
            self._has_ended = output.finished
        return output

    def close(self) -> None:
        """Leave: the request is aborted if it still runs, and nothing more comes. Idempotent."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def call_on_close(self, callback: Callable[[], None]) -> None:
        self._on_close = callback

    def __aiter__(self) -> "RequestOutputCollector":
        return self

    async def __anext__(self) -> RequestOutput:
        if self._has_ended:
            raise StopAsyncIteration
        return await self.get()

    def __del__(self) -> None:
        self.close()
