"""`RunState`: the life of an answer at the worker that produces it, and how it may end."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from server.engines.client import CANNOT_CONTINUE, OutputError
from server.protocol.objects import By, EndStatus, Engine, Reason
from sessions.model.records import MessageStatus

# The engine's finish reason → (status of the response, reason), where no stop was asked for.
FINISH_TO_STATUS: dict[str, tuple[EndStatus, Reason]] = {
    "stop": ("completed", "eos"),
    "length": ("incomplete", "max_output_tokens"),
    "repetition": ("incomplete", "repetition"),
    "abort": ("failed", "engine_error"),
    "error": ("failed", "engine_error"),
}
STOP_TO_STATUS: dict[Reason, EndStatus] = {
    "server_shutdown": "incomplete",
    "deadline": "incomplete",
}  # else cancelled
INCOMPLETE: Mapping[str, Reason] = {  # what the engine says of its end → what clients hear
    CANNOT_CONTINUE: "engine_lost",
    "content_filter": "content_filter",
}
FORM_PROBLEMS = ("grammar_refused", "unsupported_parameter", "invalid_request")  # of the engine
STATUS_TO_MESSAGE_STATUS: dict[EndStatus, MessageStatus] = {
    "completed": "completed",
    "cancelled": "interrupted",
    "incomplete": "interrupted",
    "failed": "failed",
}


class RunState(Enum):
    """Where an answer is in its life. `MOVES` has what may follow; nothing else can."""

    RUNNING = "running"  # its gate is open: from waiting for its turn to the engine's last token
    STOPPING = "stopping"  # its gate is closed; the engine's last output is awaited
    LEAVING = "leaving"  # stopped, too, but only here: another worker will go on
    ENDING = "ending"  # its end is on the way to the store: too late for a stop of this worker
    DELETED = "deleted"  # its session is gone, and that was somebody's wish
    LOST = "lost"  # the store refuses this worker's writes: nothing more may be said
    ENDED = "ended"  # its end is certain, and sent
    DISOWNED = "disowned"  # another worker ends it, or has
    HANDED_OVER = "handed_over"  # this worker has given it up


MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset(
        {
            RunState.STOPPING,
            RunState.LEAVING,
            RunState.ENDING,
            RunState.DELETED,
            RunState.LOST,
            RunState.DISOWNED,
        }
    ),
    RunState.STOPPING: frozenset(
        {RunState.ENDING, RunState.DELETED, RunState.LOST, RunState.DISOWNED}
    ),
    RunState.LEAVING: frozenset({RunState.HANDED_OVER}),
    RunState.ENDING: frozenset(
        {
            RunState.STOPPING,  # for a moment: the store had a stop before the end
            RunState.ENDED,
            RunState.DELETED,
            RunState.LOST,
            RunState.DISOWNED,
        }
    ),
    RunState.DELETED: frozenset({RunState.ENDED, RunState.DISOWNED}),
    RunState.LOST: frozenset({RunState.ENDED, RunState.DELETED, RunState.DISOWNED}),
    RunState.ENDED: frozenset({RunState.DISOWNED}),  # by a bug on the way from there
    RunState.DISOWNED: frozenset(),
    RunState.HANDED_OVER: frozenset(),
}


class IllegalMove(Exception):
    """An answer cannot come from the one state into the other: a bug of ours."""


@dataclass(frozen=True, slots=True)
class End:
    """How the answer ended, before the store has confirmed it."""

    status: EndStatus
    reason: Reason
    engine: Engine
    by: By | None = None
    message: str = ""  # to a person: what is wrong with the form that was asked for

    def details(self) -> dict[str, str]:
        """As a message keeps it."""
        return {"reason": self.reason, **({"message": self.message} if self.message else {})}


def end_of_error(error: OutputError, engine: Engine, *, has_form: bool) -> End:
    """How an answer ends that its engine cannot make; what is refused says so to a person."""
    if error.code in INCOMPLETE:
        return End("incomplete", INCOMPLETE[error.code], engine)
    if has_form and error.code in FORM_PROBLEMS:
        return End("failed", "output_format_refused", engine, message=error.message)
    message = error.message if error.code == "invalid_request" else ""
    return End("failed", "engine_error", engine, message=message)


def pauses_queue(end: End) -> bool:
    """Whether what waits in the session is not to begin by itself after such an end.

    A stop says that something is wrong, and what waits may build on the answer; so does a failure,
    which the next question would meet, too. And calls wait for what their tools give back.
    """
    if end.reason == "tool_calls":
        return True
    makes_room = end.reason in ("superseded", "steered")
    return end.status == "failed" or (end.status == "cancelled" and not makes_room)
