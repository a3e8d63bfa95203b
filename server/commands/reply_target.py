"""What a response answers: a new question, a stored one again, or the rest of a broken answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import UnsetType

from server.commands.doors.brought import Brought
from server.protocol.client_frames import CallOutput, CreateResponse
from server.protocol.errors import ApiError, invalid_field
from sessions.model.errors import MessageNotFound, ResponseInProgress
from sessions.model.ids import check_message_id, new_message_id
from sessions.model.records import Message, Session, Unset
from sessions.store.store import SessionStore


@dataclass(frozen=True, slots=True)
class ReplyTarget:
    """What a response answers, as the store's messages were when it was read."""

    leaf: str | None  # the newest message before the question
    text: str  # the question
    question: Message | None = None  # None: it is stored together with the answer's beginning
    continued: Message | None = None  # the answer to go on with
    version: str | None = None  # of `continued`, see `Messages.with_version`
    outputs: list[dict[str, str]] | None = None  # what tools gave back, in the place of a question
    before: Sequence[Message] = ()  # that are stored with the question, after `leaf`
    brought: Message | None = None  # the question as a door brings it

    @property
    def base(self) -> str:
        """What the answer says already."""
        return self.continued.text if self.continued else ""

    def new_question(self, now_ms: int) -> Message | None:
        """The user message to store; None if it is stored already."""
        if self.question is not None:
            return None
        if self.brought is not None:
            return self.brought
        if self.outputs:
            return Message.of_outputs(new_message_id(), self.leaf, self.outputs, now_ms)
        return Message(new_message_id(), self.leaf, "user", self.text, "completed", now_ms)

    def answer(self, response_id: str, question_id: str, model: str, now_ms: int) -> Message:
        """The message that the response writes, as it is when the response begins."""
        if self.continued is None:
            return Message(
                new_message_id(),
                question_id,
                "assistant",
                "",
                "in_progress",
                now_ms,
                response_id=response_id,
                model=model,
            )
        return replace(  # its usage stays: what follows is added to it
            self.continued,
            status="in_progress",
            response_id=response_id,
            model=model,
            timings=None,
            status_details=None,
            settings=None,
            restarts=None,
            exactness=None,
        )

    @staticmethod
    def of_brought(brought: Brought, head: str | None) -> "ReplyTarget":
        """What a door brings; `head` is the session's now."""
        leaf = head if isinstance(brought.leaf, Unset) else brought.leaf
        asked = brought.question
        return ReplyTarget(
            leaf, asked.text, outputs=asked.outputs, before=brought.before, brought=asked
        )


class ReplyTargets:
    """Reads from the store what a frame refers to."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def of(self, uid: str, session: Session, frame: CreateResponse) -> ReplyTarget:
        """Raises `ApiError` for a message that cannot be regenerated or continued, or whose calls
        are others, and `ResponseInProgress` for one that is being written."""
        if frame.outputs:
            leaf = session.head if isinstance(frame.parent_id, UnsetType) else frame.parent_id
            return await self._of_outputs(uid, session.id, leaf, frame.outputs)
        if frame.input is not None:
            if isinstance(frame.parent_id, UnsetType):
                return ReplyTarget(session.head, frame.text)
            check_message_id(frame.parent_id)
            return ReplyTarget(frame.parent_id, frame.text)
        param = "regenerate_of" if frame.regenerate_of is not None else "continue_of"
        message_id: str = getattr(frame, param)
        check_message_id(message_id)
        answer, version = await self._store.messages.with_version(uid, session.id, message_id)
        question = await self._question(uid, session.id, answer)
        if question is None:
            raise invalid_field(param, "that message answers no other")
        if param == "regenerate_of":
            return ReplyTarget(
                question.parent_id, question.text, question, outputs=question.outputs
            )
        if answer.status == "in_progress":
            raise ResponseInProgress(answer.response_id or "")
        if answer.status != "interrupted":
            raise invalid_field(param, "only an interrupted answer can be continued")
        if answer.tool_calls:
            raise invalid_field(param, "an answer that has called tools cannot be continued")
        return ReplyTarget(
            question.parent_id, question.text, question, answer, version, question.outputs
        )

    async def _of_outputs(
        self, uid: str, session_id: str, leaf: str | None, given: Sequence[CallOutput]
    ) -> ReplyTarget:
        """Every call of the message before must be answered, and no other.

        Raises `ApiError` `call_not_found`, `call_outputs_missing`.
        """
        called: set[str] = set()
        own: list[dict[str, str]] = []  # of the calls that the server has carried out
        if leaf is not None:
            check_message_id(leaf)
            message = await self._store.messages.get(uid, session_id, leaf)
            if message.status == "in_progress":
                raise ResponseInProgress(message.response_id or "")
            own = _own_outputs(message)
            calls = message.tool_calls or ()
            called = {call["call_id"] for call in calls if call["status"] == "completed"}
            called -= {each["call_id"] for each in own}
        for place, output in enumerate(given):
            if output.call_id not in called:
                problem = "the message before has no such call that waits for an output"
                raise ApiError("call_not_found", problem, param=f"input[{place}].call_id")
        missing = len(called) - len(given)
        if missing:
            problem = f"{missing} more of the calls of that message need an output"
            raise ApiError("call_outputs_missing", problem, param="input")
        outputs = [{"call_id": each.call_id, "output": each.output} for each in given] + own
        return _target(leaf, outputs)

    async def of_round(self, uid: str, session_id: str, message_id: str) -> ReplyTarget:
        """What the server's own tools gave back to that message. Raises `MessageNotFound`."""
        message = await self._store.messages.get(uid, session_id, message_id)
        return _target(message_id, _own_outputs(message))

    async def _question(self, uid: str, session_id: str, answer: Message) -> Message | None:
        if answer.role != "assistant" or answer.parent_id is None:
            return None
        try:
            question = await self._store.messages.get(uid, session_id, answer.parent_id)
        except MessageNotFound:
            return None
        return question if question.role in ("user", "tool") else None


def _own_outputs(message: Message) -> list[dict[str, str]]:
    """What became of the calls that the server itself has carried out."""
    items = message.tool_outputs or ()
    return [{"call_id": item["call_id"], "output": item["output"]} for item in items]


def _target(leaf: str | None, outputs: list[dict[str, str]]) -> ReplyTarget:
    return ReplyTarget(leaf, "".join(each["output"] for each in outputs), outputs=outputs)
