"""`StreamedReply`: takes the reply to a request for an answer, an event at a time."""

import asyncio
from collections.abc import Callable

from server.engines.remote.dialects.dialect import Reader, Step
from server.engines.remote.wire.events import EventReader
from server.engines.remote.wire.exchange import MAX_MESSAGE_BYTES, message_of
from server.engines.remote.wire.problems import BadStatus, Broken, RemoteProblem, Silent

STREAM = "text/event-stream"
JSON = "application/json"
MAX_WHOLE_BYTES = 1 << 20
DONE = b"[DONE]"  # the last event of some, which says nothing


class StreamedReply:
    """`take` gets each step, and says whether nothing more is wanted; `on_sign` hears of progress.

    A reply that `is_whole` is one event. Bytes that say nothing of the answer are no progress, such
    as the comments by which proxies keep connections open.
    """

    def __init__(
        self,
        reader: Reader,
        take: Callable[[Step], bool],
        on_sign: Callable[[], None],
        *,
        is_whole: bool = False,
    ) -> None:
        self.has_gap = False  # after its last step tokens follow that the engine has not named
        self._reader = reader
        self._take = take
        self._on_sign = on_sign
        self._is_whole = is_whole
        self._events = EventReader()
        self._content = bytearray()  # of what is no stream
        self._error_status: int | None = None
        self._is_finished = False  # nothing that still comes is of use
        self._has_begun = False  # a token of it has come
        self._num_computed = 0  # tokens of its prompt
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def wait(self, first_seconds: float, next_seconds: float) -> None:
        """Return when it has ended as it should. Raises `RemoteProblem`; `Silent` without progress.

        It may be silent for `first_seconds` before its first token, then for `next_seconds`.
        """
        while not self._done.done():
            seconds = next_seconds if self._has_begun else first_seconds
            left = self._heard_at + seconds - self._loop.time()
            if left <= 0:
                raise Silent(f"nothing more of the answer has come for {seconds:g} s")
            # Not longer, since the first token makes what is left shorter.
            await asyncio.wait([self._done], timeout=min(left, next_seconds))
        self._done.result()

    # ---- from the exchange

    def began(self, status: int, content_type: str) -> None:
        self._sign()
        kind = content_type.partition(";")[0].strip().lower()
        if status != 200:
            self._error_status = status
        elif kind != (JSON if self._is_whole else STREAM):
            raise Broken(f"a reply of the type {kind or 'that it does not say'}")

    def took(self, data: bytes) -> None:
        if self._error_status is not None:
            self._content += data
            if len(self._content) > MAX_MESSAGE_BYTES:
                raise self._refusal(self._error_status)
        elif self._is_whole:
            self._content += data
            if len(self._content) > MAX_WHOLE_BYTES:
                raise Broken(f"a reply of more than {MAX_WHOLE_BYTES} bytes")
        else:
            for event in self._events.feed(data):
                if self._is_finished:
                    return
                if event != DONE:
                    self._read(event)
        if self._is_finished:
            self._settle(None)

    def ended(self, problem: RemoteProblem | None) -> None:
        if self._error_status is not None:
            problem = self._refusal(self._error_status)
        elif problem is None and self._is_whole:
            try:
                self._read(bytes(self._content))
            except RemoteProblem as wrong:
                problem = wrong
        elif problem is None and not self._is_finished:
            problem = Broken("the reply ended before the answer did")
        self._settle(problem)

    def _read(self, event: bytes) -> None:
        step = self._reader.read(event)
        if step is None:
            return
        if step.error is not None:
            raise Broken(f"the engine says: {step.error}")
        reason = step.finish_reason
        if step.token_ids or reason or step.num_computed_tokens > self._num_computed:
            self._num_computed = max(self._num_computed, step.num_computed_tokens)
            self._sign()
        self._has_begun = self._has_begun or bool(step.token_ids)
        if reason == "gap" or (self._is_whole and reason == "length"):
            step.finish_reason = None
        elif reason == "abort":
            raise Broken("the engine has given up the request")
        self._is_finished = self._take(step)
        if reason == "gap" and not self._is_finished:
            self.has_gap = self._is_finished = True

    def _refusal(self, status: int) -> BadStatus:
        return BadStatus(status, message_of(status, bytes(self._content)))

    def _sign(self) -> None:
        self._heard_at = self._loop.time()
        self._on_sign()

    def _settle(self, problem: RemoteProblem | None) -> None:
        if self._done.done():
            return
        if problem is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(problem)
            self._done.exception()  # who would have read it may be gone
