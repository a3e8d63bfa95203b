"""`AnswerTrace`: one answer at this worker as spans, `chat MODEL` and in it what took its time.

    admission → prompt → store → turn → llm_request (the engine's) → store
                                        write: what was appended to the log, from first to last
                                        stop: from the wish to the engine's release

Nothing here knows OpenTelemetry; `Tracing` does. No span holds what users or models write, and
none their names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

if TYPE_CHECKING:
    from server.engines.tracing import Attributes, Tracing

# Settings of an answer that its span shows: numbers, and no text. The names are OpenTelemetry's.
SHOWN_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "seed": "gen_ai.request.seed",
}
SHOWN_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
STORED = ("traceparent", "tracestate")  # fields of an answer's run


class AnswerTracing:
    """Begins the traces of one worker's answers."""

    def __init__(self, tracing: Tracing, model: str) -> None:
        self._tracing = tracing
        self._model = model

    def begin(
        self,
        session_id: str,
        traceparent: str | None,
        tracestate: str | None,
        request: HTTPConnection | None,
    ) -> AnswerTrace:
        """Somebody has asked for an answer. What the frame says of their span comes before what the
        HTTP request, or the upgrade to a websocket, says.
        """
        headers = _of_frame(traceparent, tracestate)
        if headers is None:
            headers = {} if request is None else _of_request(request)
        return self._trace(session_id, headers, {})

    def resume(
        self, session_id: str, response_id: str, fence: int, stored: Mapping[str, str]
    ) -> AnswerTrace:
        """Go on with the answer of another worker, in the same trace if that one had any."""
        headers = {name: stored[name] for name in STORED if name in stored}
        ours: Attributes = {"gen_ai.response.id": response_id, "parley.fence": fence}
        return self._trace(session_id, headers, ours)

    def _trace(
        self, session_id: str, headers: Mapping[str, str], attributes: Attributes
    ) -> AnswerTrace:
        whole: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "parley",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.conversation.id": session_id,
            **attributes,
        }
        return AnswerTrace(self._tracing, f"chat {self._model}", headers, whole)


class AnswerTrace:
    """All of an answer's spans at this worker. Moments are of `time.monotonic()`.

    `headers` name its span to the engine, and to the worker that may go on with the answer.
    """

    def __init__(
        self, tracing: Tracing, name: str, parent: Mapping[str, str], attributes: Attributes
    ) -> None:
        tracing.follow_clock()
        self._tracing = tracing
        self._began = self._last = time.monotonic()
        self._span = tracing.start(
            name, tracing.context(parent), tracing.ns(self._began), attributes
        )
        self.headers = tracing.headers(self._span)
        self._asked: dict[str, Any] = {}
        self._written: tuple[float, float] | None = None  # from when to when
        self._num_writes = self._num_entries = 0
        self._write_seconds = 0.0
        self._has_ended = False

    def passed(self, phase: str, attributes: Attributes | None = None) -> None:
        """A phase is over, which began when the one before it was."""
        began, self._last = self._last, time.monotonic()
        self.part(phase, began, self._last, attributes)

    def part(
        self, name: str, began: float, ended: float, attributes: Attributes | None = None
    ) -> None:
        """Something that took so long."""
        tracing = self._tracing
        tracing.child(self._span, name, tracing.ns(began), tracing.ns(ended), attributes)

    def asked(self, response_id: str, settings: Mapping[str, Any]) -> None:
        """The answer has begun, with these settings."""
        self._asked["gen_ai.response.id"] = response_id
        if "model" in settings:  # maybe one with an adapter
            self._asked["gen_ai.request.model"] = settings["model"]
            self._asked["gen_ai.response.model"] = settings["model"]
        for name, attribute in SHOWN_SETTINGS.items():
            if settings.get(name) is not None:
                self._asked[attribute] = settings[name]

    def wrote(self, sent: float, num_entries: int) -> None:
        """The store has taken so many entries of the log, in a call that was `sent` then."""
        now = time.monotonic()
        self._written = (self._written[0] if self._written else sent, now)
        self._num_writes += 1
        self._num_entries += num_entries
        self._write_seconds += now - sent

    def stopped(self, at: float, by: str, reason: str, engine: str) -> None:
        """The engine has released what somebody wished to end at that moment."""
        attributes = {"parley.stop.by": by, "parley.stop.reason": reason, "parley.engine": engine}
        self.part("stop", at, time.monotonic(), attributes)

    def refuse(self, code: str) -> None:
        """There is no answer."""
        self._end({"parley.response.status": "refused"}, code)

    def replay(self, response_id: str) -> None:
        """The answer was begun before, by the same key."""
        self._asked["gen_ai.response.id"] = response_id
        self._end({"parley.response.status": "replayed"})

    def leave(self, state: str) -> None:
        """The answer is another worker's to end, unless it has ended."""
        self._end({"parley.response.status": state})

    def end(
        self, status: str, reason: str, usage: Mapping[str, int], first_token: float | None
    ) -> None:
        """The answer has ended, as `response.done` says. Only the first end counts."""
        attributes: dict[str, Any] = {
            "parley.response.status": status,
            "gen_ai.response.finish_reasons": [reason],
            **{SHOWN_USAGE[name]: number for name, number in usage.items()},
        }
        if first_token is not None and first_token >= self._began:
            latency = first_token - self._began
            attributes["gen_ai.latency.time_to_first_token"] = latency
        self._end(attributes, reason if status == "failed" else None)

    def _end(self, attributes: dict[str, Any], error: str | None = None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._written is not None:
            written: Attributes = {
                "parley.write.calls": self._num_writes,
                "parley.write.entries": self._num_entries,
                "parley.write.seconds": self._write_seconds,
            }
            self.part("write", *self._written, written)
        now = time.monotonic()
        attributes["gen_ai.latency.e2e"] = now - self._began
        self._tracing.end(self._span, self._tracing.ns(now), {**self._asked, **attributes}, error)


def _of_frame(traceparent: str | None, tracestate: str | None) -> dict[str, str] | None:
    if traceparent is None:
        return None
    return {"traceparent": traceparent, "tracestate": tracestate or ""}


def _of_request(request: HTTPConnection) -> dict[str, str]:
    """More than one parent is none; states are one list, wherever it is split (RFC 9110)."""
    parents = request.headers.getlist("traceparent")
    states = request.headers.getlist("tracestate")
    if len(parents) != 1:
        return {}
    return {"traceparent": parents[0], "tracestate": ",".join(states)}
