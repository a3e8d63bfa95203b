"""Rendering a conversation into the text a model was trained on: the checkpoint's jinja template.

The template is code from the checkpoint, so it runs in a process of its own, with bounds of time,
memory and length (`process.py`, `child.py`). One that leaves its bounds ends the
rendering that it was asked for, and another process takes the next one.

Templates that came with a processor for pictures may know contents as lists of parts only, and make
nothing of a text. Which kind one is, a rendering shows; it is then given what it can read.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.client.templates.child import MAX_FRAME_BYTES
from engine.client.templates.process import TemplateEnded, TemplateProcess, encode
from engine.errors import ChatTemplateError, RetryableRequestError, ValidationError

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]  # role, content, and what else the template reads

# For checkpoints without a template (base models): one line per turn, role and text.
FALLBACK_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content | trim }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
FALLBACK_STOP = ("\nUser:", "\nSystem:")  # where an answer to the fallback's prompt ends

# Of processor time. Templates in use take 10 µs to 100 µs a message.
COMPILE_SECONDS = 2.0  # the trial, too
RENDER_SECONDS = 1.0
MAX_TRIAL_CHARACTERS = 2**20
CHARACTERS_PER_BYTE = 4  # of text from each byte of a conversation, beside those of a trial
MAX_SOURCE_CHARACTERS = 2**20

MEDIA = ("image", "video", "audio")  # in the type of a part that is no text
MARK = "7315924680"  # a content that no template changes

_TRIALS: tuple[list[Message], ...] = (
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3 + 3?\n\nThank you."},
    ],
)


class ChatTemplate:
    """One template, and the process that renders it: started when it is needed. Thread-safe."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._process: TemplateProcess | None = None
        self._is_compiled = False
        self._num_closes = 0
        self._broken: ValidationError | None = None  # why it cannot be compiled
        self._reads_parts: bool | None = None  # not known yet

    @property
    def pid(self) -> int | None:
        """The process that renders, if there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Let the process come up, so that the first rendering does not wait for it."""
        with self._lock:
            self._existing()

    def close(self) -> None:
        """End the process, and what it renders; a later rendering starts another one."""
        self._num_closes += 1
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()
        elif (process := self._process) is not None:
            process.kill()

    def try_out(self) -> None:
        """Compile, and render what any template can or refuses.

        Raises `ValidationError` if it is broken, `ChatTemplateError` if it leaves its bounds.
        """
        for messages in _TRIALS:
            with self._lock:
                self._try([_readable(message, self._wants_parts()) for message in messages])

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The text of a conversation.

        Raises `ValidationError` if the template refuses it, `NotImplementedError` for pictures and
        sounds, `ChatTemplateError` if the template leaves its bounds over it,
        `RetryableRequestError` if somebody ends its process, and the next one.
        """
        if not messages:
            raise ValidationError("a conversation needs at least one message", "messages", [])
        _refuse_media(messages)
        try:
            with self._lock:
                wants_parts = self._wants_parts()
        except ChatTemplateError as error:
            logger.warning("%s", error)
            raise
        plain = [_readable(message, wants_parts) for message in messages]
        given = {"messages": plain, **variables}
        try:
            encoded = encode(given)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            problem = f"the chat template cannot be given this: {error}"
            raise ValidationError(problem, "messages") from None
        if len(encoded) > MAX_FRAME_BYTES:
            raise ValidationError("the conversation is too long", "messages")
        max_characters = MAX_TRIAL_CHARACTERS + CHARACTERS_PER_BYTE * len(encoded)
        asked = {"variables": msgspec.Raw(encoded), "max_characters": max_characters}
        try:
            with self._lock:
                reply = self._ask(asked, RENDER_SECONDS)
        except ChatTemplateError as error:
            logger.warning("%s", error)
            raise
        if "refused" in reply:
            problem = f"the chat template refuses these messages: {reply['refused']}"
            raise ValidationError(problem, "messages")
        return str(reply["text"])

    def _wants_parts(self) -> bool:
        """Whether it shows the parts of a content, and no text that is given as it is."""
        if self._reads_parts is None:
            message = {"role": "user", "content": MARK}
            text, parts = (self._try([_readable(message, as_parts)]) for as_parts in (False, True))
            self._reads_parts = MARK not in text and MARK in parts
        return self._reads_parts

    def _try(self, messages: list[Message]) -> str:
        """The text of a short conversation; nothing if it is refused."""
        variables = {"messages": messages, "add_generation_prompt": True}
        asked = {"variables": variables, "max_characters": MAX_TRIAL_CHARACTERS}
        return str(self._ask(asked, COMPILE_SECONDS).get("text", ""))

    def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The reply, which says `text` or `refused`."""
        num_closes = self._num_closes
        for _ in range(2):  # a process that somebody else has killed is replaced
            try:
                process = self._existing()
                if not self._is_compiled:
                    self._compile(process)
                return self._checked(process.ask(request, seconds))
            except TemplateEnded as ended:
                self._drop()
                if self._num_closes > num_closes:
                    break
                if ended.reason is not None:
                    self._existing()
                    raise _fault(ended.reason) from None
        raise RetryableRequestError("the process that renders chat templates was ended")

    def _compile(self, process: TemplateProcess) -> None:
        if self._broken is not None:
            raise self._broken
        try:
            if len(self.source) > MAX_SOURCE_CHARACTERS:
                raise ValidationError("the chat template is too long", "chat_template")
            reply = self._checked(process.ask({"source": self.source}, COMPILE_SECONDS))
            if "refused" in reply:
                problem = f"the chat template is broken: {reply['refused']}"
                raise ValidationError(problem, "chat_template")
        except TemplateEnded as ended:
            if ended.reason is None:
                raise
            self._broken = _fault(ended.reason)
        except ValidationError as error:
            self._broken = error
        if self._broken is not None:
            self._drop()
            raise self._broken
        self._is_compiled = True

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        if "exceeded" in reply:
            self._drop()
            self._existing()
            raise _fault(str(reply["exceeded"]))
        return reply

    def _existing(self) -> TemplateProcess:
        """The process, or a new one, which comes up while nobody waits for it yet."""
        if self._process is None or not self._process.is_ours:
            self._process, self._is_compiled = TemplateProcess(), False
        return self._process

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process, self._is_compiled = None, False


def _refuse_media(messages: Sequence[Message]) -> None:
    """Templates write a placeholder for a picture, and nobody would put the picture there."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and any(medium in kind for medium in MEDIA):
                place = f"messages[{index}].content has a part of the type {kind!r}"
                raise NotImplementedError(f"pictures and sounds are not implemented: {place}")


def _readable(message: Message, as_parts: bool) -> Message:
    """The message without what is not given; its content as a list of parts, if that is wanted."""
    given = {name: value for name, value in message.items() if value is not None}
    content = given.get("content")
    if as_parts and isinstance(content, str):
        given["content"] = [{"type": "text", "text": content}]
    return given


def _fault(reason: str) -> ChatTemplateError:
    return ChatTemplateError(f"the chat template has left its bounds: {reason}", "chat_template")
