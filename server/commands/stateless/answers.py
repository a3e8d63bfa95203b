"""`StatelessAnswers`: from what a client asks to an answer that begins, or a refusal.

Nothing of it is stored, so nobody can come back to it, and who reads it must stay.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from server.commands.admission import Admission
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Asked
from server.commands.stateless.choice import Work
from server.commands.stateless.entry import Entered, Entry
from server.engines.client import (
    ChatTemplateError,
    EngineClient,
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
from sessions.model.quotas import Budget

RESTARTING = "the server is restarting"


class StatelessAnswers:
    """Those of one worker."""

    def __init__(
        self,
        entry: Entry,
        models: Models,
        admission: Admission,
        salt_of: Callable[[str], str],
        max_seconds: float,
    ) -> None:
        self._entry = entry
        self._models = models
        self._admission = admission
        self._salt_of = salt_of  # what names a user to the engine
        self._max_seconds = max_seconds
        self._running: set[StatelessAnswer] = set()

    async def begin(self, uid: str, asked: Asked, leave: AsyncExitStack) -> StatelessAnswer:
        """Its events are for the caller to read. Raises `ApiError` and the store's errors.

        The caller closes `leave` afterwards, also if the events are not read, or if this raises.
        """
        entered = await self._entry.enter(uid, asked.model, leave)
        engine, model = entered.engine, entered.model
        with self._admission.beginning():
            settings = self._settings(model, asked)
            token_ids = await self._prompt(uid, engine, asked, settings)
        room = engine.model_config.max_model_len - len(token_ids)
        max_tokens = _tokens(settings, room, entered.budget, token_ids, asked.num_answers)
        work = Work(
            engine,
            token_ids,
            _params(engine, asked, settings, token_ids, max_tokens),
            self._salt_of(uid),
            model.lora_request,
            schemas_of(offered_tools(settings)),
            is_parsed=asked.prompt is None and not has_form(settings),
            max_seconds=self._max_seconds,
            must_call=must_call(settings),
        )
        answer = StatelessAnswer(entered.id, work, entered.budget)
        self._running.add(answer)
        leave.callback(self._end, answer, entered)
        return answer

    async def num_prompt_tokens(self, uid: str, asked: Asked) -> int:
        """How many tokens the model would be given. Raises `ApiError` and the store's errors."""
        async with AsyncExitStack() as leave:
            entered = await self._entry.enter(uid, asked.model, leave)
            settings = self._settings(entered.model, asked)
            return len(await self._prompt(uid, entered.engine, asked, settings))

    def end_all(self) -> None:
        """Tell all who read that nothing more comes."""
        for answer in self._running:
            answer.end(RESTARTING)

    def _end(self, answer: StatelessAnswer, entered: Entered) -> None:
        self._running.remove(answer)
        self._entry.charge(entered, len(answer.prompt_token_ids) + answer.num_output_tokens)

    # ---- what the engine is asked ---------------------------------------------------------------

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
    settings: Mapping[str, Any],
    room: int,
    budget: Budget | None,
    prompt: Sequence[int],
    num_answers: int,
) -> int:
    """So many at most of each answer: what was asked for, fits, and is left of the user's day for
    it; one at least.
    """
    wanted = min(int(settings["max_output_tokens"]), room)
    if budget is None:
        return wanted
    return max(1, min(wanted, (budget.remaining - len(prompt)) // num_answers))


def _too_long(num_tokens: str, limit: int) -> ApiError:
    message = f"the prompt has {num_tokens} tokens; the model's context has {limit}"
    return ApiError("context_length_exceeded", message, param="messages")
