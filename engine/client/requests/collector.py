"""`RequestOutputCollector`: where the outputs of one request wait for their reader."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from engine.errors import EngineGenerateError
from engine.outputs import RequestOutput
from engine.pooling import PoolingRequestOutput
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

    def put(self, output: RequestOutput | PoolingRequestOutput | Exception) -> None:
        """Add an output; an exception takes the place of what waits. Ignored after `close`."""
        if self._has_ended:
            return
        if isinstance(output, RequestOutput) and isinstance(self.output, RequestOutput):
            self.output.add(output, aggregate=self._aggregate)
        elif not isinstance(self.output, Exception):
            self.output = cast(RequestOutput | Exception, output)  # others are read by `encode`
            self.ready.set()

    async def get(self) -> RequestOutput:
        """The waiting output, or the next one. May be cancelled; no output is lost by it.

        Several may wait, each output goes to one of them. `EngineGenerateError` after the last.
        """
        output = await self.get_or_end()
        if output is None:
            raise EngineGenerateError("the stream has ended")
        return output

    async def get_or_end(self) -> RequestOutput | None:
        """As `get`, but None after the last output."""
        while (output := self.get_nowait()) is None and not self._has_ended:
            await self.ready.wait()
        return output

    def get_nowait(self) -> RequestOutput | None:
        """The waiting output, or None. Raises what ended the stream, if that is what waits."""
        output, self.output = self.output, None
        if isinstance(output, Exception) or (output is not None and output.finished):
            self._end()
        self.ready.clear()
        if isinstance(output, Exception):
            raise output
        return output

    def close(self) -> None:
        """Leave: the request is aborted if it still runs, and nothing more comes. Idempotent."""
        self.output = None
        self._end()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _end(self) -> None:
        self._has_ended = True
        self.ready.set()  # other readers must not wait for ever
        self.ready.clear()  # but nothing is ready

    def call_on_close(self, callback: Callable[[], None]) -> None:
        self._on_close = callback

    def __aiter__(self) -> "RequestOutputCollector":
        return self

    async def __anext__(self) -> RequestOutput:
        output = await self.get_or_end()
        if output is None:
            raise StopAsyncIteration
        return output

    def __del__(self) -> None:
        self.close()
