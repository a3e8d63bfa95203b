"""`/openapi.json`: what can be done over HTTP, made from the declarations that do it.

Bodies and queries are the structs that are validated against, answers the objects whose frames the
websocket sends, so the document cannot say anything else than the server does.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from server import __version__
from server.access.auth import SECURE_COOKIE_NAME
from server.api.rest.objects import Document, ErrorBody
from server.api.rest.operation import Access, Header, Operation, error_object
from server.protocol.client_frames import PURPOSES

SCHEMAS = "#/components/schemas/"
FORM = "application/x-www-form-urlencoded"
EVENT_STREAM = "text/event-stream"
_PARAMETER = re.compile(r"{(\w+)}")
ID_PATTERNS = {
    "session_id": r"^ses_[A-Za-z0-9_-]{22}$",
    "message_id": r"^msg_[A-Za-z0-9_-]{22}$",
    "response_id": r"^resp_[A-Za-z0-9_-]{33}$",
    "conversation_id": r"^conv_[A-Za-z0-9_-]{22}$",
    "share_id": r"^shr_[A-Za-z0-9_-]{44}$",
}
# Which parameter the `id` of these objects is.
ID_OF = {
    "SessionObject": "session_id",
    "ResponseObject": "response_id",
    "ShareLink": "share_id",
    "ConversationObject": "conversation_id",
    "NewUser": "uid",
    "UserDetails": "uid",
}


def openapi(operations: Iterable[Operation]) -> Document:
    """The document, as OpenAPI 3.1."""
    listed = list(operations)
    schemas = _schemas(listed)
    paths: dict[str, Document] = {}
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, schemas
        )
    _add_links(paths)
    for kind in {operation.query for operation in listed if operation.query is not None}:
        schemas.pop(kind.__name__, None)  # they stand as parameters
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Parley",
            "version": __version__,
            "description": "Chat sessions over HTTP. The websocket at /v1/ws has a document of "
            "its own: /asyncapi.json.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": SECURE_COOKIE_NAME,
                    "description": "Over plain HTTP its name is `parley-` and the port.",
                },
            },
        },
    }


def _add_links(paths: dict[str, Document]) -> None:
    """From each object that has an id to the operations on exactly that object."""
    leading: dict[str, list[str]] = {}  # the one parameter of a path → its operations
    for path, methods in paths.items():
        match _PARAMETER.findall(path):
            case [name]:
                leading.setdefault(name, []).extend(one["operationId"] for one in methods.values())
    for methods in paths.values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
                kind = str(schema.get("$ref", "")).removeprefix(SCHEMAS)
                if name := ID_OF.get(kind):
                    answer["links"] = {
                        to: {"operationId": to, "parameters": {name: "$response.body#/id"}}
                        for to in leading[name]
                    }


def _operation(operation: Operation, schemas: dict[str, Document]) -> Document:
    document: Document = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "security": _security(operation.access),
        "responses": {
            **{str(status): _answer(kind) for status, kind in _answers(operation).items()},
            "default": _refusal(operation),
        },
    }
    parameters = [*_path_parameters(operation), *_query_parameters(operation, schemas)]
    parameters += [_header(header) for header in operation.headers]
    if parameters:
        document["parameters"] = parameters
    if operation.body is not None:
        required = schemas[operation.body.__name__].get("required", [])
        document["requestBody"] = {"required": bool(required), **_json(operation.body)}
    if operation.form is not None:
        content = _json(operation.form)["content"]["application/json"]
        document["requestBody"] = {"required": True, "content": {FORM: content}}
    return document


def _refusal(operation: Operation) -> Document:
    """The error object; a page too, where an operation refuses in a way of its own."""
    content = dict(_json(ErrorBody)["content"])
    if operation.refuse is not error_object:
        content["text/html"] = {"schema": {"type": "string"}}
    return {"description": "Refused", "content": content}


def _operation_id(operation: Operation) -> str:
    words = re.sub(r"\W+", "_", operation.path.removeprefix("/v1")).strip("_")
    return f"{operation.method.lower()}_{words or 'page'}"


def _security(access: Access) -> list[Document]:
    if access is Access.PUBLIC:
        return []
    bearer: list[Document] = [{"bearer": []}]
    return bearer if access is Access.ADMIN else [*bearer, {"cookie": []}]


def _answers(operation: Operation) -> dict[int, Any]:
    return dict(operation.answers) or {200: Document}


def _answer(kind: Any) -> Document:
    """A success: no body, a media type, a struct, or several of them."""
    if kind is None:
        return {"description": "Done"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    content: Document = {one: _text_schema(one) for one in kinds if _is_media_type(one)}
    bodies = [_json_schema(one) for one in kinds if not _is_media_type(one)]
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        content["application/json"] = {"schema": schema}
    return {"description": "Done", "content": content}


def _text_schema(media_type: str) -> Document:
    """None of a stream: tools hold each of its events against it, which is no string."""
    return {} if media_type == EVENT_STREAM else {"schema": {"type": "string"}}


def _is_media_type(kind: Any) -> bool:
    return isinstance(kind, str) and "/" in kind


def _json(kind: Any) -> Document:
    """JSON of that struct; of any object where none is declared."""
    return {"content": {"application/json": {"schema": _json_schema(kind)}}}


def _json_schema(kind: Any) -> Document:
    is_struct = isinstance(kind, type) and issubclass(kind, Struct)
    return {"$ref": SCHEMAS + kind.__name__} if is_struct else {"type": "object"}


def _path_parameters(operation: Operation) -> list[Document]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", **_pattern(ID_PATTERNS.get(name))},
        }
        for name in _PARAMETER.findall(operation.path)
    ]


def _query_parameters(operation: Operation, schemas: dict[str, Document]) -> list[Document]:
    if operation.query is None:
        return []
    schema = schemas[operation.query.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _header(header: Header) -> Document:
    schema = {"type": "string", **_pattern(header.pattern)}
    return {"name": header.name, "in": "header", "required": header.required, "schema": schema}


def _pattern(pattern: str | None) -> Document:
    return {} if pattern is None else {"pattern": pattern}


def _schemas(operations: Iterable[Operation]) -> dict[str, Document]:
    """Name → schema of every struct that an operation names."""
    kinds: dict[Any, None] = {ErrorBody: None}
    for operation in operations:
        answers = _answers(operation).values()
        flat = [one for kind in answers for one in (kind if isinstance(kind, tuple) else (kind,))]
        for kind in (operation.query, operation.body, operation.form, *flat):
            if isinstance(kind, type) and issubclass(kind, Struct):
                kinds[kind] = None
    _, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS + "{name}")
    if (body := components.get("CreateResponseBody")) is not None:
        body["oneOf"] = [_only(name) for name in PURPOSES]
    return {name: _portable(components[name]) for name in sorted(components)}


def _only(purpose: str) -> Document:
    """A response is asked for by this field and by no other; `parent_id` is the input's place."""
    others = {name: {"type": "null"} for name in PURPOSES if name != purpose}
    place = {} if purpose == "input" else {"parent_id": False}
    given = {purpose: {"not": {"type": "null"}}}
    return {"required": [purpose], "properties": {**others, **given, **place}}


def _portable(value: Any) -> Any:
    """Patterns in the regular expressions that JSON Schema knows; one line in descriptions."""
    if isinstance(value, dict):
        return {
            key: " ".join(each.split()).replace(r"\Z", "$")
            if key in ("pattern", "description") and isinstance(each, str)
            else _portable(each)
            for key, each in value.items()
        }
    return [_portable(each) for each in value] if isinstance(value, list) else value
