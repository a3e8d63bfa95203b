"""The body of `POST /v1/chat/completions`, and what it asks for.

Fields that change an answer are honoured or refused by name. Those that only describe who asks, or
say what holds here anyway, are taken and have no effect; docs/http.md lists all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from server.api.openai.refusals import not_here
from server.api.openai.sampling_fields import SamplingFields
from server.commands.stateless.asked import Asked
from server.generation.chat_messages import ChatMessage, arguments_object, short_id
from server.protocol.errors import invalid_field

MAX_MESSAGES = 2000
MAX_TOOLS = 128
TOP_LOGPROBS = 20


class TextPart(Struct, frozen=True):
    """Of a content that has several parts."""

    type: str
    text: str | None = None


Content = str | list[TextPart] | None


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Said(Struct, frozen=True):
    """A message; other fields of it are what servers add to answers, and clients send back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Struct, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Struct, frozen=True):
    type: str
    function: FunctionDefinition | None = None


class NamedFunction(Struct, frozen=True):
    name: str


class NamedTool(Struct, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class JsonSchema(Struct, frozen=True, rename={"schema_": "schema"}):
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As OpenAI's clients send it, and some fields of vLLM's."""

    messages: Annotated[list[Said], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    # of vLLM
    thinking_token_budget: Annotated[int, Meta(ge=0)] | None = None
    continue_final_message: bool | None = None  # the last message is what the answer begins with
    add_generation_prompt: bool | None = None
    # without effect
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    store: bool | None = None
    verbosity: Literal["medium"] | None = None
    # refused
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: list[str] | None = None
    moderation: Any = None
    prediction: Any = None
    web_search_options: Any = None

    @property
    def asked(self) -> Asked:
        """What is asked for. Raises `ApiError`."""
        self._check()
        variables = {}
        if self.reasoning_effort is not None:
            variables["reasoning_effort"] = self.reasoning_effort
        said, answer = self._said_and_begun()
        return Asked(
            model=self.model,
            messages=chat_messages(said),
            answer=answer,
            settings=self._settings(),
            parameters=self.parameters(),
            variables=variables,
            num_answers=self.n or 1,
            conversation=self.prompt_cache_key,
        )

    def _check(self) -> None:
        for name in REFUSED:
            if getattr(self, name) is not None:
                raise not_here(name)
        if self.modalities not in (None, ["text"]):
            raise not_here("modalities", "answers are text")
        if self.store:
            raise not_here("store", "calls of this route are not kept; sessions are")
        is_one_call = isinstance(self.tool_choice, NamedTool)  # it is held to that
        if self.parallel_tool_calls is False and self.tools and not is_one_call:
            raise not_here("parallel_tool_calls", "a model may call several tools at once")

    def _said_and_begun(self) -> tuple[list[Said], str]:
        """The messages, and what the answer to them says already."""
        if not self.continue_final_message:
            if self.add_generation_prompt is False:
                raise not_here("add_generation_prompt", "a prompt asks for an answer")
            return self.messages, ""
        if self.add_generation_prompt:
            problem = "an answer that goes on is not asked for anew"
            raise invalid_field("add_generation_prompt", problem)
        *said, last = self.messages
        place = f"messages[{len(said)}]"
        text = _text(last.content, f"{place}.content")
        if last.role != "assistant" or last.tool_calls or not text or not said:
            raise invalid_field("continue_final_message", f"{place} is no answer that can go on")
        return said, text

    def _settings(self) -> dict[str, Any]:
        given = {
            "max_output_tokens": self.max_completion_tokens,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "output": _output(self.response_format),
            "tools": _tools(self.tools),
            "tool_choice": _tool_choice(self.tool_choice),
            "thinking_token_budget": self.thinking_token_budget,
        }
        more = {name: value for name, value in given.items() if value is not None}
        return {**self.sampling_settings(), **more}


REFUSED = (
    "audio",
    "function_call",
    "functions",
    "moderation",
    "prediction",
    "web_search_options",
)


def chat_messages(said: Sequence[Said]) -> list[ChatMessage]:
    """As chat templates take them. Raises `ApiError`."""
    names: dict[str, str] = {}  # of the functions that were called, by id
    found: list[ChatMessage] = []
    for place, message in enumerate(said):
        text = _text(message.content, f"messages[{place}].content")
        match message.role:
            case "assistant":
                calls = message.tool_calls or []
                names.update({call.id: call.function.name for call in calls})
                entry: ChatMessage = {"role": "assistant", "content": text}
                if calls:
                    entry["tool_calls"] = [_call(call) for call in calls]
                found.append(entry)
            case "tool":
                call_id = message.tool_call_id or ""
                if call_id not in names:
                    param = f"messages[{place}].tool_call_id"
                    raise invalid_field(param, "no message before has such a call")
                known = {"tool_call_id": short_id(call_id), "name": names[call_id]}
                found.append({"role": "tool", "content": text, **known})
            case role:
                is_system = role in ("system", "developer")
                found.append({"role": "system" if is_system else role, "content": text})
    return found


def _text(content: Content, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for place, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise not_here(f"{param}[{place}].type", "a message is text")
    return "".join(part.text or "" for part in content)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = arguments_object(call.function.arguments)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": short_id(call.id), "type": "function", "function": function}


def _output(asked: ResponseFormat | None) -> Mapping[str, Any] | None:
    match asked:
        case ResponseFormat(type="json_object"):
            return {"type": "json"}
        case ResponseFormat(type="json_schema", json_schema=schema):
            if schema is None or schema.schema_ is None:
                raise invalid_field("response_format.json_schema", "there is no schema")
            return {"type": "json_schema", "schema": schema.schema_}
        case _:
            return None


def _tool_choice(asked: str | NamedTool | None) -> Any:
    if isinstance(asked, NamedTool):
        return {"type": "function", "name": asked.function.name}
    return asked


def _tools(asked: Sequence[ToolDefinition] | None) -> list[dict[str, Any]] | None:
    if not asked:
        return None
    found = []
    for place, tool in enumerate(asked):
        if tool.type != "function" or tool.function is None:
            raise not_here(f"tools[{place}].type", "tools are functions of the client")
        function = tool.function
        about = {"description": function.description, "parameters": function.parameters}
        given = {name: value for name, value in about.items() if value is not None}
        found.append({"type": "function", "name": function.name, **given})
    return found
