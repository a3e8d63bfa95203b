"""`StatelessAnswers`: from what a client asks to an answer that begins, or a refusal.

It counts like any other: its user's answers at a time and tokens of the day, the engine's queue,
fair turns. Nothing of it is stored, so nobody can come back to it, and who reads it must stay.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from server.commands.admission import Admission
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Asked
from server.commands.stateless.choice import Work
from server.engines.client import (
    ChatTemplateError,
    EngineClient,
    EngineDeadError,
    ModelLoadError,
    PromptTooLongError,
    RetryableRequestError,
    SamplingParams,
    ServedModel,
    ValidationError,
)
from server.engines.models import Models
from server.generation.answers import schemas_of
from server.generation.chat_messages import template_tools
from server.generation.sampling import (
    choice_problem,
    effective_settings,
    has_form,
    must_call,
    named_tool,
    offered_tools,
    sampling_params,
)
from server.protocol.errors import ApiError, invalid_field
from server.runs.active_limit import ActiveLimit
from sessions.background import Background
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.quotas import Budget
from sessions.store.store import SessionStore

ENGINE_WAIT_SECONDS = 60.0  # for a core that restarts, or a model that is loaded
RESTARTING = "the server is restarting"


class StatelessAnswers:
    """Those of one worker."""

    def __init__(
        self,
        store: SessionStore,
        models: Models,
        admission: Admission,
        salt_of: Callable[[str], str],
        limit: ActiveLimit | None,
        max_seconds: float,
    ) -> None:
        self._store = store
        self._models = models
        self._admission = admission
        self._salt_of = salt_of  # what names a user to the engine
        self._limit = limit
        self._max_seconds = max_seconds
        self._running: dict[StatelessAnswer, str] = {}  # whose they are
        self._idle = asyncio.Event()
        self._idle.set()
        self._background = Background()

    def slots(self) -> list[tuple[str, str]]:
        """User and id of each that runs, which counts among their answers at a time."""
        return [(uid, answer.id) for answer, uid in self._running.items()]

    async def begin(self, uid: str, asked: Asked, leave: AsyncExitStack) -> StatelessAnswer:
        """Its events are for the caller to read. Raises `ApiError` and the store's errors.

        The caller closes `leave` afterwards, also if the events are not read, or if this raises.
        """
        model = self._models.chosen(asked.model)
        if model is None:
            raise ApiError("model_not_found", "this server has no such model", param="model")
        leave.enter_context(self._models.using(model.name))
        budget = await self._admission.check(uid, model.name)
        self._admission.num_beginning += 1
        try:
            engine = await self._engine(model)
            settings = self._settings(model, asked)
            token_ids = await self._prompt(uid, engine, asked, settings)
            response_id = new_response_id(new_session_id())
            if self._limit is not None:
                await self._limit.take(uid, response_id)
                leave.callback(self._limit.free, uid, response_id)
        finally:
            self._admission.num_beginning -= 1
        room = engine.model_config.max_model_len - len(token_ids)
        max_tokens = _tokens(settings, room, budget, token_ids)
        params = _params(engine, asked, settings, token_ids, max_tokens)
        work = Work(
            engine,
            token_ids,
            params,
            self._salt_of(uid),
            model.lora_request,
            schemas_of(offered_tools(settings)),
            is_parsed=asked.prompt is None and not has_form(settings),
            max_seconds=self._max_seconds,
        )
        answer = StatelessAnswer(response_id, work)
        self._running[answer] = uid
        self._idle.clear()
        leave.callback(self._end, answer)
        return answer

    async def wait_idle(self, seconds: float) -> None:
        """Return when none runs any more, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    def end_all(self) -> None:
        """Tell all who read that nothing more comes."""
        for answer in self._running:
            answer.end(RESTARTING)

    async def close(self) -> None:
        await self._background.close()

    def _end(self, answer: StatelessAnswer) -> None:
        uid = self._running.pop(answer)
        if not self._running:
            self._idle.set()
        num_tokens = len(answer.prompt_token_ids) + answer.num_output_tokens
        self._background.spawn(self._charge(uid, answer.id, num_tokens))

    async def _charge(self, uid: str, response_id: str, num_tokens: int) -> None:
        now_ms = await self._store.client.now_ms()
        await self._store.budgets.charge(uid, response_id, num_tokens, now_ms)

    # ---- what the engine is asked ---------------------------------------------------------------

    async def _engine(self, model: ServedModel) -> EngineClient:
        engine = self._models.engine(model.name)
        if engine.is_ready:
            return engine
        try:
            await engine.wait_ready(ENGINE_WAIT_SECONDS)
        except ModelLoadError as error:
            raise ApiError("model_unavailable", str(error), param="model") from error
        except (TimeoutError, EngineDeadError) as error:
            raise ApiError("engine_unavailable", "the engine is away; try again shortly") from error
        return engine

    def _settings(self, model: ServedModel, asked: Asked) -> dict[str, Any]:
        settings = effective_settings(model, self._models.context(model.name), asked.settings)
        if "max_output_tokens" not in asked.settings:
            settings["max_output_tokens"] = self._models.context(model.name)
        if offered_tools(settings) and has_form(settings):
            problem = "an answer of a given form calls no tools: say tool_choice none with it"
            raise invalid_field("response_format", problem)
        if choice := choice_problem(settings):
            raise invalid_field("tool_choice", choice)
        return settings

    async def _prompt(
        self, uid: str, engine: EngineClient, asked: Asked, settings: Mapping[str, Any]
    ) -> list[int]:
        limit = engine.model_config.max_model_len
        tokenizer = engine.get_tokenizer()
        if isinstance(asked.prompt, str):
            token_ids = await tokenizer.encode_async(asked.prompt, owner=uid)
        elif asked.prompt is not None:
            token_ids = list(asked.prompt)
        else:
            tools = offered_tools(settings)
            if tools and not (engine.answer_grammar.has_calls and tokenizer.takes_tools):
                message = "this model is told of no tools, or it is unknown how it calls them"
                raise ApiError("tools_not_supported", message, param="tools")
            token_ids = await _render(uid, engine, asked, tools, limit)
        if len(token_ids) >= limit:
            raise _too_long(f"{len(token_ids)}", limit)
        if not token_ids:
            raise invalid_field("prompt", "the prompt is empty")
        return token_ids


def _params(
    engine: EngineClient,
    asked: Asked,
    settings: Mapping[str, Any],
    token_ids: Sequence[int],
    max_tokens: int,
) -> list[SamplingParams]:
    chat_stop = engine.get_tokenizer().chat_stop if asked.prompt is None else ()
    form = None
    try:
        if settings.get("thinking_token_budget") is not None:
            engine.thought_tokens(token_ids)
        if must_call(settings):
            schemas = schemas_of(offered_tools(settings)) or {}
            form = engine.call_form(schemas, named_tool(settings), token_ids)
        return [
            sampling_params(
                {**settings, "seed": settings["seed"] + number},
                max_tokens,
                chat_stop,
                call_form=form,
                more=asked.parameters,
            )
            for number in range(asked.num_answers)
        ]
    except ValidationError as error:
        raise invalid_field(error.parameter or "", f"{error}") from error


async def _render(
    uid: str,
    engine: EngineClient,
    asked: Asked,
    tools: Sequence[Mapping[str, Any]],
    limit: int,
) -> list[int]:
    variables = {**asked.variables, **({"tools": template_tools(tools)} if tools else {})}
    tokenizer = engine.get_tokenizer()
    try:
        return await tokenizer.apply_chat_template_async(
            asked.messages, owner=uid, max_length=limit, **variables
        )
    except PromptTooLongError as error:
        raise _too_long(f"at least {error.num_tokens}", limit) from error
    except ValidationError as error:
        verb = "takes too much time or memory over" if _is_stopped(error) else "refuses"
        problem = f"the model's chat template {verb} this conversation"
        raise invalid_field("messages", problem) from error
    except RetryableRequestError as error:
        raise ApiError("engine_unavailable", "the prompt was not made; try again") from error


def _is_stopped(error: ValidationError) -> bool:
    return isinstance(error, ChatTemplateError)


def _tokens(
    settings: Mapping[str, Any], room: int, budget: Budget | None, prompt: Sequence[int]
) -> int:
    """So many at most: what was asked for, fits, and is left of the user's day; one at least."""
    wanted = min(int(settings["max_output_tokens"]), room)
    return wanted if budget is None else max(1, min(wanted, budget.remaining - len(prompt)))


def _too_long(num_tokens: str, limit: int) -> ApiError:
    message = f"the prompt has {num_tokens} tokens; the model's context has {limit}"
    return ApiError("context_length_exceeded", message, param="messages")
