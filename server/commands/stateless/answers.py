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
from server.generation.prompts import behind_thought, thought_end_of
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
            prompts = await self._prompts(uid, engine, asked, settings)
        num_tokens = await self._tokens(entered, settings, prompts, asked.num_answers)
        salt, name = self._salt_of(uid), asked.conversation
        work = Work(
            engine,
            prompts,
            [
                params
                for token_ids in prompts
                for params in _params(engine, asked, settings, token_ids, num_tokens)
            ],
            salt,
            model.lora_request,
            schemas_of(offered_tools(settings)),
            is_parsed=not asked.prompts and not has_form(settings),
            max_seconds=self._max_seconds,
            must_call=must_call(settings),
            echoes=_echoes(engine, asked),
            is_only_echoed=asked.is_only_echoed,
            session_id=None if not name else f"{salt}/{name}",
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
            prompts = await self._prompts(uid, entered.engine, asked, settings)
            return sum(map(len, prompts))

    def end_all(self) -> None:
        """Tell all who read that nothing more comes."""
        for answer in self._running:
            answer.end(RESTARTING)

    def _end(self, answer: StatelessAnswer, entered: Entered) -> None:
        self._running.remove(answer)
        self._entry.charge(entered, answer.num_prompt_tokens + answer.num_output_tokens)

    async def _tokens(
        self,
        entered: Entered,
        settings: Mapping[str, Any],
        prompts: Sequence[Sequence[int]],
        num_answers: int,
    ) -> int:
        """So many at most of each answer: what was asked for, and is left of the day for it; one
        at least.
        """
        most = entered.engine.model_config.max_model_len
        asked = int(settings["max_output_tokens"])
        num_prompt = sum(map(len, prompts))
        wanted = num_prompt + num_answers * sum(min(asked, most - len(one)) for one in prompts)
        num_all = num_answers * len(prompts)
        left = await self._entry.hold(entered, wanted=wanted, least=num_prompt + num_all)
        return asked if left is None else max(1, min(asked, (left - num_prompt) // num_all))

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

    async def _prompts(
        self, uid: str, engine: EngineClient, asked: Asked, settings: Mapping[str, Any]
    ) -> list[list[int]]:
        limit = engine.model_config.max_model_len
        tokenizer = engine.get_tokenizer()
        prompts = []
        for prompt in asked.prompts:
            if isinstance(prompt, str):
                prompts.append(await tokenizer.encode_async(prompt, owner=uid))
            else:
                prompts.append(list(prompt))
        if not asked.prompts:
            tools = offered_tools(settings)
            if tools and not (engine.answer_grammar.has_calls and tokenizer.takes_tools):
                message = "this model takes no tools, or nobody knows the form of its calls"
                raise ApiError("tools_not_supported", message, param="tools")
            prompts.append(await _render(uid, engine, asked, tools, limit))
        for token_ids in prompts:
            if len(token_ids) >= limit:
                raise _too_long(f"{len(token_ids)}", limit)
            if not token_ids:
                raise invalid_field("prompt", "the prompt is empty")
        return prompts


def _params(
    engine: EngineClient,
    asked: Asked,
    settings: Mapping[str, Any],
    token_ids: Sequence[int],
    max_tokens: int,
) -> list[SamplingParams]:
    """Of the answers to one prompt."""
    max_tokens = min(max_tokens, engine.model_config.max_model_len - len(token_ids))
    chat_stop = () if asked.prompts else engine.get_tokenizer().chat_stop
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
                asked.answer,
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
    answer = asked.answer
    if answer:
        answer = behind_thought(await thought_end_of(engine) or "", answer)
    try:
        return await tokenizer.apply_chat_template_async(
            asked.messages, answer, owner=uid, max_length=limit, **variables
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


def _echoes(engine: EngineClient, asked: Asked) -> list[str]:
    if not asked.is_echoed:
        return []
    decode = engine.get_tokenizer().decode
    try:
        return [each if isinstance(each, str) else decode(each) for each in asked.prompts]
    except ValidationError as error:
        raise invalid_field("prompt", "these are no token ids") from error


def _too_long(num_tokens: str, limit: int) -> ApiError:
    # litellm and LangChain know these words, and let their users choose another model then.
    length = f"this model's maximum context length is {limit}"
    message = f"the prompt is too long: it has {num_tokens} tokens, and {length}"
    return ApiError("context_length_exceeded", message, param="messages")
