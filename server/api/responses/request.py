"""The body of `POST /v1/responses`, and what it asks for.

A field that cannot be honoured is refused by its name; docs/http.md has all of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from server.api.items.metadata import Metadata, check_metadata
from server.api.openai.refusals import not_here
from server.protocol.client_frames import Settings, check_system, to_struct
from server.protocol.errors import ApiError, invalid_field

MAX_TOKENS: Final = 16384  # of an answer that is stored
TOP_LOGPROBS: Final = 5  # that each token of a stored answer has at most
INCLUDE_LOGPROBS: Final = "message.output_text.logprobs"
# What is asked for of items that answers here never have, and of thoughts, which are sent whole.
INCLUDABLE: Final = frozenset(
    (
        INCLUDE_LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)
REFUSED: Final = (
    "access_programs",
    "background_options",
    "context_management",
    "image",
    "moderation",
    "prompt",
)
# A setting's name → the field that has given it.
FIELDS: Final[Mapping[str, str]] = {
    "system": "instructions",
    "logprobs": "top_logprobs",
    "output": "text.format",
    "thinking_token_budget": "reasoning",
}
Name = Annotated[str, Meta(max_length=512)]


class Conversation(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(max_length=64)]


class ResponseStreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None  # nothing is obfuscated here


class Format(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = None
    strict: bool | None = None


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    format: Format | None = None
    verbosity: str | None = None


class Reasoning(Struct, frozen=True, forbid_unknown_fields=True):
    effort: Annotated[str, Meta(max_length=64)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: str | None = None
    mode: str | None = None


class Function(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    type: Literal["function"] = "function"


class Asking(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked, of whichever kind the call is: `POST /v1/responses/input_tokens`."""

    input: str | list[Any] | None = None
    conversation: str | Conversation | None = None
    instructions: str | None = None
    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Name | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    personality: Any = None

    @property
    def conversation_id(self) -> str | None:
        """As the client names it."""
        given = self.conversation
        return given.id if isinstance(given, Conversation) else given

    def check(self) -> None:
        """Raises `ApiError` for what cannot be done."""
        if self.input is None or self.input == []:
            raise invalid_field("input", "there is no input")
        if self.conversation is not None and self.previous_response_id is not None:
            problem = "an answer follows a response or a conversation, not both"
            raise invalid_field("previous_response_id", problem)
        if self.parallel_tool_calls is False and self.tools:
            raise not_here("parallel_tool_calls", "a model may call several tools at once")
        if self.personality is not None:
            raise not_here("personality")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise not_here("text.verbosity", "no model takes it")
        if self.reasoning is not None:
            self._check_reasoning(self.reasoning)

    def _check_reasoning(self, reasoning: Reasoning) -> None:
        if reasoning.context not in (None, "auto"):
            raise not_here("reasoning.context", "no model gets the thoughts of earlier answers")
        if reasoning.mode not in (None, "standard"):
            raise not_here("reasoning.mode")

    def given_settings(self) -> dict[str, Any]:
        """What is given, as settings of an answer."""
        given = {
            "model": self.model,
            "system": self.instructions or None,
            "output": _output(self.text),
            "tools": functions_of(self.tools),
            "tool_choice": _choice(self.tool_choice),
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def other_settings(self) -> dict[str, Any]:
        """What is given that no frame of chat.v1 says."""
        found: dict[str, Any] = {"truncation": self.truncation or "disabled"}
        if self.reasoning is not None and self.reasoning.effort is not None:
            found["reasoning_effort"] = self.reasoning.effort
        return found


class ResponsesRequest(Asking, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As OpenAI's clients send it."""

    background: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: Name | None = None
    service_tier: Literal["auto", "default", "fast", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    user: Name | None = None
    # refused
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        for name in REFUSED:
            if getattr(self, name) is not None:
                raise not_here(name)
        super().check()
        check_include(self.include)
        check_metadata(self.metadata)
        if not self.is_stored:
            if self.background:
                raise not_here("background", "with store false an answer needs its caller")
            if self.conversation is not None:
                raise not_here("conversation", "with store false nothing is added to one")
        elif (self.top_logprobs or 0) > TOP_LOGPROBS:
            problem = f"an answer that is stored has {TOP_LOGPROBS} of each token at most"
            raise not_here("top_logprobs", problem)

    @property
    def num_logprobs(self) -> int | None:
        """How many each token has beside its own; None: no token has any."""
        is_wanted = INCLUDE_LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if is_wanted or self.top_logprobs else None

    def given_settings(self) -> dict[str, Any]:
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_output_tokens": self.max_output_tokens,
            "logprobs": self.num_logprobs,
        }
        more = {name: value for name, value in given.items() if value is not None}
        return {**super().given_settings(), **more}

    def stored_settings(self) -> Settings:
        """The same of an answer that is stored. Raises `ApiError`."""
        most = min(self.max_output_tokens or MAX_TOKENS, MAX_TOKENS)
        with named_as_given():
            given = {**self._afresh, **self.given_settings(), "max_output_tokens": most}
            settings: Settings = to_struct(given, Settings)
            check_system(settings)
        return settings

    @property
    def _afresh(self) -> dict[str, Any]:
        """What holds even if a named session says otherwise: it goes on without viewers, has no
        tools and no form but those that are asked for."""
        if self.conversation is None:
            return {}
        return {"on_no_viewers": "continue", "tools": [], "output": {"type": "text"}}

    def echo(self) -> dict[str, Any]:
        """What the response's object says of it, where that is not what it says of all."""
        format_ = None if self.text is None else self.text.format
        reasoning = self.reasoning or Reasoning()
        given = {
            "background": self.background,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "safety_identifier": self.safety_identifier,
            "store": self.store,
            "temperature": self.temperature,
            "text": None if format_ is None else {"format": _format_echo(format_)},
            "tool_choice": self.tool_choice,
            "tools": None if not self.tools else [_tool_echo(tool) for tool in self.tools],
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p,
            "truncation": self.truncation,
            "user": self.user,
        }
        return {name: value for name, value in given.items() if value is not None}


@contextmanager
def named_as_given() -> Iterator[None]:
    """Within it a refusal of a setting names the field that has given it."""
    try:
        yield
    except ApiError as error:
        if error.param is None:
            raise
        param = error.param.removeprefix("settings.")
        head = param.split(".")[0].split("[")[0]
        param = FIELDS.get(head, head) + param[len(head) :]
        refusal = ApiError(
            error.code, error.message, param=param, retry_after_ms=error.retry_after_ms
        )
        raise refusal from error


def check_include(names: list[str] | None) -> None:
    """Raises `ApiError` for what is nothing that can be included."""
    for place, name in enumerate(names or ()):
        if name not in INCLUDABLE:
            raise invalid_field(f"include[{place}]", "there is nothing of that name to include")


def functions_of(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """As settings have them. Raises `ApiError`."""
    if not tools:
        return None
    found = []
    for place, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise not_here(f"tools[{place}].type", "tools are functions of the client")
        try:
            function: Function = to_struct(tool, Function)
        except ApiError as error:
            raise invalid_field(f"tools[{place}].{error.param}", error.message) from None
        about = {"description": function.description, "parameters": function.parameters}
        given = {name: value for name, value in about.items() if value is not None}
        found.append({"type": "function", "name": function.name, **given})
    return found


def _tool_echo(tool: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": None, "strict": None, **tool}


def _format_echo(given: Format) -> dict[str, Any]:
    if given.type != "json_schema":
        return {"type": given.type}
    return {
        "type": given.type,
        "name": given.name,
        "description": given.description,
        "schema": given.schema_,
        "strict": given.strict,
    }


def _output(text: Text | None) -> dict[str, Any] | None:
    match None if text is None else text.format:
        case Format(type="json_object"):
            return {"type": "json"}
        case Format(type="json_schema", schema_=schema):
            if schema is None:
                raise invalid_field("text.format.schema", "there is no schema")
            return {"type": "json_schema", "schema": schema}
        case _:
            return None


def _choice(asked: str | dict[str, Any] | None) -> Any:
    if asked is None or asked in ("auto", "none", "required"):
        return asked
    if not isinstance(asked, dict) or asked.get("type") != "function":
        raise not_here("tool_choice", "it is auto, none, required, or one function")
    function: NamedFunction = to_struct(asked, NamedFunction)
    return {"type": "function", "name": function.name}
