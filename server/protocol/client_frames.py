"""The frames of `chat.v1`, inbound: what a client may send, parsed and validated; no I/O.

`parse` turns the text of one websocket message into one of the structs below or raises
`ApiError`. Unknown fields are ignored at the top level of a frame and refused inside `settings`.
Outbound frames are those of `server_frames.py`.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import UNSET, Meta, Struct, UnsetType

from server.protocol.errors import ApiError, invalid_field

# A text of `protocol.MAX_INPUT_BYTES` fits however JSON writes what is not ASCII: \u00e9 and \u20ac
# are 6 bytes for 2 and 3.
MAX_MESSAGE_BYTES = 512 * 1024
MAX_DEPTH = 32
MAX_INTEGER = 2**53  # beyond it JavaScript cannot count
MAX_INPUT_BYTES = 128 * 1024
MAX_SYSTEM_BYTES = 32 * 1024
MAX_LOGPROBS = 5
MAX_OUTPUT_BYTES = 32 * 1024  # of `settings.output` as JSON: each message keeps it
MAX_CHOICES = 256
MAX_TOOLS = 64
MAX_TOOLS_BYTES = 32 * 1024  # of `settings.tools` as JSON
MAX_CALL_OUTPUTS = 64
MAX_STOP_AFTER_SECONDS = 24 * 3600
MAX_PRIORITY = 1000
MAX_ECHO_CHARACTERS = 64  # of a client's own words in an error message
MAX_MESSAGE_CHARACTERS = MAX_ECHO_CHARACTERS + 32

# Ids are checked by shape here, so that a malformed one never reaches Redis; see
# sessions/model/ids.py.
Text = Annotated[str, Meta(max_length=64)]
Title = Annotated[str, Meta(max_length=200)]
IdempotencyKey = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}\Z")]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


# ---- settings -----------------------------------------------------------------------------------


class StopAfter(Struct, forbid_unknown_fields=True, frozen=True):
    """Stop an answer that nobody has watched for so many seconds."""

    stop_after_s: Annotated[int, Meta(ge=1, le=MAX_STOP_AFTER_SECONDS)]


class TextOutput(Struct, tag="text", forbid_unknown_fields=True, frozen=True):
    """Any text, as without `output`; it takes back what the session says."""


class JsonOutput(Struct, tag="json", forbid_unknown_fields=True, frozen=True):
    """Any JSON object."""


class SchemaOutput(Struct, tag="json_schema", forbid_unknown_fields=True, frozen=True):
    """JSON that this schema describes."""

    schema: dict[str, Any]


class RegexOutput(Struct, tag="regex", forbid_unknown_fields=True, frozen=True):
    """A text that this pattern describes as a whole."""

    pattern: Annotated[str, Meta(min_length=1, max_length=MAX_OUTPUT_BYTES)]


class ChoiceOutput(Struct, tag="choice", forbid_unknown_fields=True, frozen=True):
    """One of these texts."""

    choices: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_OUTPUT_BYTES)]],
        Meta(min_length=1, max_length=MAX_CHOICES),
    ]


class GrammarOutput(Struct, tag="grammar", forbid_unknown_fields=True, frozen=True):
    """A text of this grammar, in Lark's way to write it or in GBNF."""

    grammar: Annotated[str, Meta(min_length=1, max_length=MAX_OUTPUT_BYTES)]


class FunctionTool(Struct, tag="function", forbid_unknown_fields=True, frozen=True):
    """A tool that a model may call and the client answers for; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    description: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET


class NamedTool(Struct, tag="function", forbid_unknown_fields=True, frozen=True):
    """The tool of this name must be called."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class McpTool(Struct, tag="mcp", forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Tools of a server that the operator has configured, which Parley runs itself.

    `allowed_tools` names some of them, as the server or as the model names them; missing: all.
    """

    server_label: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    allowed_tools: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=128)]],
            Meta(min_length=1, max_length=128),
        ]
        | UnsetType
    ) = UNSET


Tool = FunctionTool | McpTool
Output = TextOutput | JsonOutput | SchemaOutput | RegexOutput | ChoiceOutput | GrammarOutput


class Settings(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Sampling and prompt settings: the session's, overridden by a response's. None: not set."""

    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    system: Annotated[str, Meta(max_length=MAX_SYSTEM_BYTES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=16384)] | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | UnsetType | None = UNSET  # None: draw one
    stop: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=4)]
        | None
    ) = None
    repetition_penalty: Annotated[float, Meta(ge=0.1, le=10)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    on_no_viewers: Literal["continue"] | StopAfter | None = None
    output: Output | None = None  # the form that an answer must have
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    # "none": offered no tool, this time; "required": it must call one, or more.
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=16384)] | None = None

    def given(self) -> dict[str, Any]:
        """What is set, as it is stored."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


# ---- what frames hold besides -------------------------------------------------------------------


class InputText(Struct, tag="input_text", frozen=True):
    text: str


class CallOutput(Struct, tag="function_call_output", frozen=True):
    """What the tool gave back that the model has called under this id."""

    call_id: Annotated[str, Meta(min_length=1, max_length=128)]
    output: str


def text_of(given: str | Sequence[InputText | CallOutput] | None) -> str:
    """An `input` as one string."""
    if given is None or isinstance(given, str):
        return given or ""
    return "".join(part.text if isinstance(part, InputText) else part.output for part in given)


class LogPosition(Struct, frozen=True):
    epoch: Text
    offset: Count


class ResponsePosition(Struct, frozen=True):
    response_id: str
    fence: Count
    after_sequence_number: Count


# ---- frames -------------------------------------------------------------------------------------


class Frame(Struct, frozen=True, kw_only=True):
    """Every frame may carry an `event_id`, echoed in direct replies and errors."""

    event_id: Text | None = None


class CreateSession(Frame, frozen=True, kw_only=True):
    idempotency_key: IdempotencyKey
    title: Title = ""
    settings: Settings = Settings()


class SubscribeSession(Frame, frozen=True, kw_only=True):
    session_id: str
    after: LogPosition | None = None
    responses: Annotated[list[ResponsePosition], Meta(max_length=64)] = []
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    observe: bool = False


class UnsubscribeSession(Frame, frozen=True, kw_only=True):
    session_id: str


class UpdateSession(Frame, frozen=True, kw_only=True):
    session_id: str
    title: Title | None = None
    settings: Settings | None = None
    pinned: bool | None = None
    head: str | None = None
    branch: str | None = None  # a message: the head becomes the newest one that came of it
    if_revision: Count | None = None


class DeleteSession(Frame, frozen=True, kw_only=True):
    session_id: str


class CreateResponse(Frame, frozen=True, kw_only=True):
    session_id: str
    idempotency_key: IdempotencyKey
    input: str | list[InputText | CallOutput] | None = None
    regenerate_of: str | None = None
    continue_of: str | None = None
    parent_id: str | UnsetType | None = UNSET  # None: before every other message
    settings: Settings = Settings()
    on_busy: Literal["reject", "queue", "cancel"] = "reject"
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    traceparent: str | None = None  # these two as in the W3C's trace context: ignored if malformed
    tracestate: str | None = None

    @property
    def text(self) -> str:
        """The new message as one string; empty without `input`."""
        return text_of(self.input)

    @property
    def outputs(self) -> list[CallOutput]:
        """What tools gave back, if that is what the `input` says."""
        given = self.input if isinstance(self.input, list) else []
        return [part for part in given if isinstance(part, CallOutput)]


class CancelResponse(Frame, frozen=True, kw_only=True):
    """`response.cancel` and its alias `stop`; naming nothing means what this connection watches."""

    response_id: str | None = None
    session_id: str | None = None
    idempotency_key: IdempotencyKey | None = None
    seen_sequence_number: Count | None = None
    reason: Annotated[str, Meta(max_length=200)] | None = None


class QueuedInputFrame(Frame, frozen=True, kw_only=True):
    """Something to be asked, kept by the server until its turn comes."""

    idempotency_key: IdempotencyKey
    input: str | list[InputText]
    settings: Settings = Settings()

    @property
    def text(self) -> str:
        """The words as one string."""
        return text_of(self.input)


class AddToQueue(QueuedInputFrame, frozen=True, kw_only=True):
    session_id: str
    place: Count | None = None  # None: the last


class SteerResponse(QueuedInputFrame, frozen=True, kw_only=True):
    """Words for the answer that is being written; the name is that of OpenAI's event."""

    previous_response_id: str


class UpdateQueue(Frame, frozen=True, kw_only=True):
    session_id: str
    item_id: str
    input: str | list[InputText] | None = None
    settings: Settings | None = None
    place: Count | None = None

    @property
    def text(self) -> str:
        """The new words as one string; empty without `input`."""
        return text_of(self.input)


class RemoveFromQueue(Frame, frozen=True, kw_only=True):
    session_id: str
    item_id: str


class SendFromQueue(Frame, frozen=True, kw_only=True):
    """Ask that item now; without one, a queue that is paused goes on."""

    session_id: str
    item_id: str | None = None


class ResumeResponse(Frame, frozen=True, kw_only=True):
    response_id: str
    fence: Count
    after_sequence_number: Count


class ConsentToCall(Frame, frozen=True, kw_only=True):
    """A user's word on a call that waits for it; "allow_session" holds for the tool from now on."""

    response_id: str
    call_id: Annotated[str, Meta(min_length=1, max_length=128)]
    decision: Literal["allow", "allow_session", "deny"]


class ClientState(Frame, frozen=True, kw_only=True):
    visible: bool


class Ping(Frame, frozen=True, kw_only=True):
    t: Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] = 0


ClientFrame = (
    CreateSession
    | SubscribeSession
    | UnsubscribeSession
    | UpdateSession
    | DeleteSession
    | CreateResponse
    | CancelResponse
    | ResumeResponse
    | AddToQueue
    | UpdateQueue
    | RemoveFromQueue
    | SendFromQueue
    | SteerResponse
    | ConsentToCall
    | ClientState
    | Ping
)
QueueFrame = AddToQueue | UpdateQueue | RemoveFromQueue | SendFromQueue | SteerResponse

TYPES: dict[str, type[Frame]] = {
    "session.create": CreateSession,
    "session.subscribe": SubscribeSession,
    "session.unsubscribe": UnsubscribeSession,
    "session.update": UpdateSession,
    "session.delete": DeleteSession,
    "response.create": CreateResponse,
    "response.cancel": CancelResponse,
    "stop": CancelResponse,
    "response.resume": ResumeResponse,
    "response.steer": SteerResponse,
    "tool_call.consent": ConsentToCall,
    "queue.add": AddToQueue,
    "queue.update": UpdateQueue,
    "queue.remove": RemoveFromQueue,
    "queue.send": SendFromQueue,
    "client.state": ClientState,
    "ping": Ping,
}
KEYED = frozenset((CreateSession, CreateResponse, AddToQueue, SteerResponse))
# What a response answers: each frame has exactly one of these.
PURPOSES = ("input", "regenerate_of", "continue_of")

# ---- from text to a frame -----------------------------------------------------------------------

_decode = msgspec.json.Decoder().decode
# Strings are skipped whole; what is left are brackets and numbers. Possessive quantifiers keep it
# linear, and `"?` lets a string that never ends swallow the rest instead of being tried at each
# quote.
_SCAN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]|-?[0-9][0-9.eE+-]*', re.DOTALL)


class FrameError(ApiError):
    """An `ApiError` of a frame, with the frame's `event_id` where it could be read."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(error.code, error.message, param=error.param)
        self.event_id = event_id


def parse(text: str) -> ClientFrame:
    """Turn one text message into a frame. Raises `FrameError` with a stable code."""
    body = decode_object(text)
    event_id = body.get("event_id")
    if not isinstance(event_id, str) or len(event_id) > MAX_ECHO_CHARACTERS:
        event_id = None
    try:
        return convert(body)
    except ApiError as error:
        raise FrameError(error, event_id) from None


def decode_object(text: str) -> dict[str, Any]:
    """JSON text → its object. Raises `ApiError` `invalid_json`, in linear time."""
    _check_numbers_and_depth(text)
    try:
        body = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ApiError("invalid_json", "this is not valid JSON") from error
    if not isinstance(body, dict):
        raise ApiError("invalid_json", "a frame is one JSON object")
    return body


def convert(body: dict[str, Any]) -> ClientFrame:
    """A decoded object → its frame. Raises `ApiError`: unknown_type, invalid_field, …"""
    name = body.get("type")
    kind = TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = json.dumps(name)[:MAX_ECHO_CHARACTERS] if "type" in body else "missing"
        raise ApiError("unknown_type", f"unknown frame type: {shown}", param="type")
    if kind in KEYED and body.get("idempotency_key") is None:
        raise ApiError(
            "idempotency_key_required", f"{name} needs an idempotency_key", param="idempotency_key"
        )
    frame: Any = to_struct(body, kind)
    check_system(getattr(frame, "settings", None))
    if isinstance(frame, CreateResponse):
        check_purpose(frame)
    elif isinstance(frame, QueuedInputFrame | UpdateQueue) and frame.input is not None:
        check_input(frame.text)
    return frame  # type: ignore[no-any-return]  # one of TYPES' values


def to_struct(body: Any, kind: type[Any], *, strict: bool = True) -> Any:
    """Validate decoded JSON as `kind`. Raises `ApiError` `invalid_field` with its path.

    Not `strict`: numbers and booleans may come as strings, as in a query.
    """
    try:
        return msgspec.convert(body, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise field_error(error) from None


def with_integers(value: Any) -> Any:
    """Decoded JSON with 2 for 2.0, which is an integer to JSON Schema."""
    if isinstance(value, dict):
        return {name: with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_integers(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_INTEGER:
        return int(value)
    return value


def field_error(error: msgspec.ValidationError) -> ApiError:
    """`invalid_field` with the path of the field."""
    text = str(error)  # `message - at `$.path``; a client's own words may be in the message
    message, found, path = text.rpartition(" - at `")
    if not found:
        message, path = text, ""
    param = path.removeprefix("$").removeprefix(".").rstrip("`")
    if not param and (named := re.search(r"field `(\w+)`", message)):
        param = named[1]
    return invalid_field(param, message[:MAX_MESSAGE_CHARACTERS])


# ---- what types do not say ----------------------------------------------------------------------


def check_system(settings: Settings | None) -> None:
    """Raise `ApiError` for a system prompt that is too long in bytes, or in the JSON of lists.

    Likewise for an `output` that is too long, and for tools that are, or that nobody can tell
    apart.
    """
    _check_tools(settings.tools if settings is not None else None)
    output = settings.output if settings is not None else None
    if output is not None and _num_bytes(output, "settings.output") > MAX_OUTPUT_BYTES:
        raise invalid_field("settings.output", f"output is longer than {MAX_OUTPUT_BYTES} bytes")
    system = settings.system if settings is not None else None
    if system is None:
        return
    if len(system.encode()) > MAX_SYSTEM_BYTES:
        raise invalid_field("settings.system", f"system is longer than {MAX_SYSTEM_BYTES} bytes")
    if len(orjson.dumps(system)) > 2 * MAX_SYSTEM_BYTES:
        problem = f"system is longer than {2 * MAX_SYSTEM_BYTES} bytes with its escapes"
        raise invalid_field("settings.system", problem)


def _num_bytes(value: Any, param: str) -> int:
    """How long its JSON is. A file may have numbers, and a nesting, that no frame has."""
    try:
        return len(orjson.dumps(msgspec.to_builtins(value)))
    except (TypeError, RecursionError):
        raise invalid_field(param, "a number or the nesting is out of range") from None


def _check_tools(tools: list[Tool] | None) -> None:
    if tools is None:
        return
    names = [
        tool.name if isinstance(tool, FunctionTool) else f"{tool.server_label}:" for tool in tools
    ]
    if len(set(names)) < len(tools):
        raise invalid_field("settings.tools", "two tools have the same name")
    if _num_bytes(tools, "settings.tools") > MAX_TOOLS_BYTES:
        raise invalid_field("settings.tools", f"tools are longer than {MAX_TOOLS_BYTES} bytes")
    for place, tool in enumerate(tools):
        if isinstance(tool, McpTool):
            continue
        schema = {} if isinstance(tool.parameters, UnsetType) else tool.parameters
        properties = schema.get("properties", {})
        is_object = schema.get("type", "object") == "object" and isinstance(properties, dict)
        if not is_object or not all(isinstance(each, dict) for each in properties.values()):
            where = f"settings.tools[{place}].parameters"
            raise invalid_field(where, "parameters must be the JSON schema of an object")


def check_purpose(frame: CreateResponse) -> None:
    """Raise `ApiError` unless the frame says one thing that can be answered."""
    given = [name for name in PURPOSES if getattr(frame, name) is not None]
    if len(given) != 1:
        raise invalid_field(
            given[-1] if given else "input", f"exactly one of {', '.join(PURPOSES)} is needed"
        )
    if frame.outputs:
        _check_outputs(frame)
    elif frame.input is not None:
        check_input(frame.text)
    elif frame.parent_id is not UNSET:
        raise invalid_field("parent_id", f"{given[0]} says already where the answer goes")


def _check_outputs(frame: CreateResponse) -> None:
    outputs = frame.outputs
    if isinstance(frame.input, list) and len(outputs) < len(frame.input):
        raise invalid_field("input", "input is either text or what tools gave back")
    if len(outputs) > MAX_CALL_OUTPUTS:
        raise invalid_field("input", f"input has more than {MAX_CALL_OUTPUTS} outputs")
    if len({each.call_id for each in outputs}) < len(outputs):
        raise invalid_field("input", "a call is answered twice")
    _check_length(frame.text)


def _check_length(text: str) -> None:
    if len(text.encode()) > MAX_INPUT_BYTES:
        raise ApiError(
            "message_too_large", f"input is longer than {MAX_INPUT_BYTES} bytes", param="input"
        )


def check_input(text: str) -> None:
    """Raise `ApiError` for words that are too long, or none."""
    _check_length(text)
    if not text.strip():
        raise invalid_field("input", "input is empty")


def _check_numbers_and_depth(text: str) -> None:
    """Refuse what a JSON parser would accept and our clients cannot hold, before any parsing."""
    depth = 0
    for match in _SCAN.finditer(text):
        token = match[0]
        if token[0] == '"':
            continue
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ApiError("invalid_json", f"nested deeper than {MAX_DEPTH}")
        elif token in "]}":
            depth -= 1
        elif not _is_countable(token):
            raise ApiError("invalid_json", "a number is out of range")


def _is_countable(number: str) -> bool:
    if number.lstrip("-").isdigit():
        return len(number) <= 17 and abs(int(number)) <= MAX_INTEGER
    try:
        return math.isfinite(float(number))
    except ValueError:
        return True  # not a number at all: the parser says so
