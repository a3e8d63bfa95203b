"""A session's history → the token ids of the next prompt, also when the chat outgrew the context.

When everything no longer fits, the oldest whole turns are left out, down to three quarters of the
room at once: the prompt then starts at the same message for many turns, so the engine's prefix
cache keeps hitting. Where it starts is found by walking the chat from its beginning with the same
rule, so every worker finds the same place without having to remember one.
"""

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from server.engines.client import (
    ChatTemplateError,
    EngineClient,
    PromptTooLongError,
    RetryableRequestError,
    StructuredOutputsParams,
    ValidationError,
)
from server.engines.models import Models
from server.generation.answers import AnswerReader, schemas_of
from server.generation.chat_messages import (
    ChatMessage,
    calls_text,
    chat_messages,
    is_said,
    template_tools,
)
from server.generation.sampling import (
    has_form,
    must_call,
    named_tool,
    offered_tools,
    thinking_budget,
)
from server.protocol.errors import ApiError, invalid_field
from sessions.model.records import Message
from sessions.store.messages import Messages

KEEP_FRACTION = 0.75
PAGE_SIZE = 200
MAX_HISTORY_MESSAGES = 2000  # beyond any context in use; bounds the work for one prompt
MESSAGE_OVERHEAD_TOKENS = 8  # role markers of a chat template; the final count is exact anyway
MAX_COUNTS = 50_000
HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given, and what of the history is in it."""

    token_ids: list[int]
    first_message_id: str | None  # the oldest message kept; None when nothing was left out
    omitted_messages: int
    is_settled: bool = True  # no answer of the history was still being written
    is_held: bool = False  # its answer, to a form, to a call of a tool, or to few thoughts
    call_form: StructuredOutputsParams | None = None  # of an answer that must call a tool
    has_tools: bool = False  # that it is offered

    @property
    def hash(self) -> str:
        """A short name, the same for the same prompt: an answer goes on under it alone.

        So a worker of an older version, which knows of no forms, does not go on without one; nor
        with calls as text, although a prompt may be the same without tools.
        """
        digits = hashlib.sha256(array("I", self.token_ids).tobytes()).hexdigest()[:HASH_DIGITS]
        return digits + "-tools" * self.has_tools + "-form" * self.is_held


class PromptBuilders:
    """One for each model: the same text is another number of tokens for each."""

    def __init__(self, messages: Messages, models: Models) -> None:
        self._messages = messages
        self._models = models
        self._builders: dict[EngineClient, PromptBuilder] = {}

    def of(self, model: str) -> "PromptBuilder":
        """For the model of this name, or for what an adapter makes of one."""
        engine = self._models.engine(model)
        if engine not in self._builders:
            self._builders[engine] = PromptBuilder(self._messages, engine)
        return self._builders[engine]


class PromptBuilder:
    """Builds prompts for one model; remembers how many tokens each stored message has."""

    def __init__(self, messages: Messages, engine: EngineClient) -> None:
        self._messages = messages
        self._engine = engine
        self._counts: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._thought_end: str | None = None  # of a thought that each prompt begins; not known yet

    async def build(
        self,
        uid: str,
        session_id: str,
        leaf: str | None,
        text: str,
        settings: Mapping[str, Any],
        base: str = "",
        outputs: Sequence[Mapping[str, str]] | None = None,
        before: Sequence[Message] = (),
        read_path: Callable[[], Awaitable[list[Message]]] | None = None,
    ) -> Prompt:
        """The prompt of `text` after the path to `leaf`, with `base` as the answer's beginning.

        `before` stands between the two, and is not stored yet. `read_path` is for a caller who
        must know what is on the path.
        `outputs` are what tools gave back, in the place of a text: then the turn that has called
        them always stays, as the message does. Raises `ApiError` `context_length_exceeded` when
        system text and message alone do not fit, `invalid_field` when the model's chat template
        refuses them or cannot be done with them, `tools_not_supported`, and for what this model's
        answers cannot be held to `output_format_refused` and `thinking_not_supported`.
        """
        tools = offered_tools(settings)
        variables = template_variables(settings)
        if (tools or outputs) and not self._takes_tools:
            message = "this model takes no tools, or nobody knows the form of its calls"
            raise ApiError("tools_not_supported", message, param="settings.tools")
        system, max_output_tokens = settings.get("system") or "", settings["max_output_tokens"]
        max_model_len = self._engine.model_config.max_model_len
        if base or has_form(settings):
            base = await self._behind_thought(base)
        tail = [Message("", leaf, "user", text, "completed", 0)]
        read_path = read_path or partial(self.path, uid, session_id, leaf)
        if outputs:
            tail = [Message.of_outputs("", leaf, outputs, 0)]
            path = [*await read_path(), *before]
            begin = _turn_begin(path)
            path, tail = path[:begin], [*path[begin:], *tail]
            alone = await self._alone(uid, system, tail, base, variables)
        else:
            alone, path = await asyncio.gather(  # the template's process and Redis work meanwhile
                self._alone(uid, system, tail, base, variables), read_path()
            )
            path = [*path, *before]
        num_first = _num_instructions(path)
        if num_first:  # before anybody has said anything: they hold for all of it, and always stay
            system = "\n\n".join([system, *(each.text for each in path[:num_first])]).strip()
            path = path[num_first:]
            alone = await self._alone(uid, system, tail, base, variables)
        # An answer may ask for more than half the context, but not at the cost of all history.
        reserved = min(max_output_tokens, max_model_len // 2)
        is_whole = settings.get("truncation") == "disabled"  # all of the history, or no answer
        if is_whole:
            reserved = 1
        room = max(max_model_len - reserved, len(alone))
        is_settled = all(message.status != "in_progress" for message in path)
        held = self._held(settings, tools, alone)
        history = [message for message in path if is_said(message)]
        if not history:
            return Prompt(alone, None, 0, is_settled, *held, bool(tools))
        start = await self._start(uid, history, tail, len(alone), room)
        while True:
            ids = alone
            if start < len(history):
                ids = await self._render(uid, system, [*history[start:], *tail], base, variables)
            if is_whole and (start or len(ids) > room):
                num_tokens = f"{len(ids)}" if not start else f"more than {room}"
                raise _too_long(num_tokens, max_model_len, "input")
            if len(ids) <= room or start >= len(history):
                break
            # The estimate was too low: one more turn goes.
            start = next(
                (i for i in range(start + 1, len(history)) if history[i].role == "user"),
                len(history),
            )
        first = history[start].id if 0 < start < len(history) else None
        return Prompt(ids, first, start, is_settled, *held, bool(tools))

    def _held(
        self,
        settings: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
        prompt_token_ids: Sequence[int],
    ) -> tuple[bool, StructuredOutputsParams | None]:
        """Whether the answer to a prompt that ends in this way is held to something, and how calls
        are. Raises `ApiError` for what this model cannot be held to.
        """
        form, budget = None, thinking_budget(settings)
        try:
            if budget is not None:
                self._engine.thought_tokens(prompt_token_ids)
            if must_call(settings):
                schemas, name = schemas_of(tools) or {}, named_tool(settings)
                form = self._engine.call_form(schemas, name, prompt_token_ids)
        except ValidationError as error:
            param = f"settings.{error.parameter}"
            raise ApiError(_CODES[param], f"{error}", param=param) from error
        return has_form(settings) or form is not None or budget is not None, form

    async def _behind_thought(self, base: str) -> str:
        """The answer's beginning as the model would have written it.

        Where the prompt begins a thought, the text must not be taken for one. A form would not let
        the model end it.
        """
        if self._thought_end is None:
            self._thought_end = await thought_end_of(self._engine)
        return behind_thought(self._thought_end or "", base)

    @property
    def _takes_tools(self) -> bool:
        return self._engine.answer_grammar.has_calls and self._engine.get_tokenizer().takes_tools

    async def _alone(
        self,
        uid: str,
        system: str,
        tail: Sequence[Message],
        base: str,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """The prompt without any history. Raises `ApiError` if that is too long already."""
        max_model_len = self._engine.model_config.max_model_len
        param = "continue_of" if base else "input"
        try:
            ids = await self._render(uid, system, tail, base, variables, max_length=max_model_len)
        except PromptTooLongError as error:
            raise _too_long(f"at least {error.num_tokens}", max_model_len, param) from error
        if len(ids) >= max_model_len:
            raise _too_long(f"{len(ids)}", max_model_len, param)
        return ids

    async def path(self, uid: str, session_id: str, leaf: str | None) -> list[Message]:
        """The path to `leaf`, oldest first, with answers that were stopped before any text."""
        if leaf is None:
            return []
        page = await self._messages.path(uid, session_id, leaf=leaf, limit=PAGE_SIZE)
        messages = list(page.messages)
        while page.has_more and len(messages) < MAX_HISTORY_MESSAGES:
            page = await self._messages.path(
                uid, session_id, leaf=leaf, before=messages[0].id, limit=PAGE_SIZE
            )
            messages[:0] = page.messages
        return messages

    async def _start(
        self,
        uid: str,
        history: Sequence[Message],
        tail: Sequence[Message],
        num_alone: int,
        room: int,
    ) -> int:
        """Where the prompt begins, found by asking every question of this chat again in thought.

        Whenever one overflows, whole turns go until `KEEP_FRACTION` is left. The new question is
        treated like those before it, so the next one finds the same place.
        """
        counts = [await self._count(uid, message) for message in history]
        counts.append(sum([await self._count(uid, message) for message in tail]))
        before = list(accumulate(counts, initial=num_alone - counts[-1]))
        questions = [place for place, m in enumerate(history) if place == 0 or m.role == "user"]
        questions.append(len(history))
        kept = 0  # index into `questions`: the oldest one that is still in the prompt
        for number, place in enumerate(questions):
            end = before[place + 1] + before[0]
            if end - before[questions[kept]] > room:
                while kept < number and end - before[questions[kept]] > room * KEEP_FRACTION:
                    kept += 1
        return questions[kept]

    async def _count(self, uid: str, message: Message) -> int:
        key = (message.id, len(message.text))  # which a client may have deleted meanwhile
        known = self._counts.get(key)
        if known is None or message.status == "in_progress":
            known = await self._count_text(uid, message.text + calls_text(message))
            if not message.id:  # it is not stored yet
                return known
            self._counts[key] = known
            if len(self._counts) > MAX_COUNTS:
                self._counts.popitem(last=False)
        return known

    async def _count_text(self, uid: str, text: str) -> int:
        tokenizer = self._engine.get_tokenizer()
        return len(await tokenizer.encode_async(text, owner=uid)) + MESSAGE_OVERHEAD_TOKENS

    async def _render(
        self,
        uid: str,
        system: str,
        said: Sequence[Message],
        base: str,
        variables: Mapping[str, Any],
        *,
        max_length: int | None = None,
    ) -> list[int]:
        with_calls = self._takes_tools
        messages = chat_messages(system, said, with_calls=with_calls)
        has_calls = any("tool_calls" in message for message in messages)
        try:
            try:
                return await self._apply(uid, messages, base, variables, max_length)
            except ChatTemplateError:
                raise
            except ValidationError:
                if not has_calls:
                    raise
                messages = chat_messages(
                    system, said, with_calls=with_calls, arguments_as_text=True
                )
                return await self._apply(uid, messages, base, variables, max_length)
        except PromptTooLongError:
            raise
        except ValidationError as error:  # some templates know no system role, for instance
            param = (
                "settings.tools"
                if "tools" in variables
                else "settings.system"
                if system
                else "input"
            )
            is_stopped = isinstance(error, ChatTemplateError)
            verb = "takes too much time or memory over" if is_stopped else "refuses"
            raise invalid_field(param, f"the model's chat template {verb} this") from error
        except RetryableRequestError as error:
            raise ApiError("engine_unavailable", "the prompt was not made; try again") from error

    async def _apply(
        self,
        uid: str,
        messages: Sequence[ChatMessage],
        base: str,
        variables: Mapping[str, Any],
        max_length: int | None,
    ) -> list[int]:
        tokenizer = self._engine.get_tokenizer()
        return await tokenizer.apply_chat_template_async(
            messages, answer=base, owner=uid, max_length=max_length, **variables
        )


async def thought_end_of(engine: EngineClient) -> str | None:
    """What ends the thought that each prompt begins; "" if it begins none, None: not known now."""
    if engine.answer_grammar.is_plain:
        return ""
    asked = [{"role": "user", "content": "Hello"}]
    try:
        ids = await engine.get_tokenizer().apply_chat_template_async(asked)
    except (ValidationError, RetryableRequestError):
        return None
    return AnswerReader(engine, ids).thought_end


def behind_thought(thought_end: str, base: str) -> str:
    """An answer's beginning as the model would have written it."""
    return f"\n{thought_end}\n\n{base}" if thought_end else base


def template_variables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What settings say to a chat template, beside the messages."""
    found: dict[str, Any] = {}
    if tools := offered_tools(settings):
        found["tools"] = template_tools(tools)
    if (effort := settings.get("reasoning_effort")) is not None:
        found["reasoning_effort"] = effort
    return found


_CODES = {  # of what a model cannot be held to
    "settings.thinking_token_budget": "thinking_not_supported",
    "settings.tool_choice": "tools_not_supported",
    "settings.tools": "output_format_refused",
}


def _num_instructions(path: Sequence[Message]) -> int:
    """How many messages of a path's beginning are of the system, or of a developer."""
    said = (at for at, each in enumerate(path) if each.role not in ("system", "developer"))
    return next(said, len(path))


def _turn_begin(path: Sequence[Message]) -> int:
    """Where the newest question of a path stands; its beginning if there is none."""
    return next((at for at in reversed(range(len(path))) if path[at].role == "user"), 0)


def _too_long(num_tokens: str, max_model_len: int, param: str) -> ApiError:
    message = f"the message has {num_tokens} tokens; the model's context has {max_model_len}"
    return ApiError("context_length_exceeded", message, param=param)
