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
from server.http_objects import Document, ErrorBody
from server.operations import Access, Header, Operation

SCHEMAS = "#/components/schemas/"
_PARAMETER = re.compile(r"{(\w+)}")
ID_PATTERNS = {
    "session_id": r"^ses_[A-Za-z0-9_-]{22}$",
    "message_id": r"^msg_[A-Za-z0-9_-]{22}$",
    "response_id": r"^resp_[A-Za-z0-9_-]{33}$",
    "share_id": r"^shr_[A-Za-z0-9_-]{44}$",
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
                "cookie": {"type": "apiKey", "in": "cookie", "name": "parley"},
            },
        },
    }


def _operation(operation: Operation, schemas: dict[str, Document]) -> Document:
    document: Document = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "security": _security(operation.access),
        "responses": {
            **{str(status): _answer(kind) for status, kind in _answers(operation).items()},
            "default": {"description": "Refused", **_json(ErrorBody)},
        },
    }
    parameters = [*_path_parameters(operation), *_query_parameters(operation, schemas)]
    parameters += [_header(header) for header in operation.headers]
    if parameters:
        document["parameters"] = parameters
    if operation.body is not None:
        required = schemas[operation.body.__name__].get("required", [])
        document["requestBody"] = {"required": bool(required), **_json(operation.body)}
    return document


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
    content: Document = {}
    for one in kind if isinstance(kind, tuple) else (kind,):
        content |= (
            {one: {"schema": {"type": "string"}}} if _is_media_type(one) else _json(one)["content"]
        )
    return {"description": "Done", "content": content}


def _is_media_type(kind: Any) -> bool:
    return isinstance(kind, str) and "/" in kind


def _json(kind: Any) -> Document:
    """JSON of that struct; of any object where none is declared."""
    is_struct = isinstance(kind, type) and issubclass(kind, Struct)
    schema = {"$ref": SCHEMAS + kind.__name__} if is_struct else {"type": "object"}
    return {"content": {"application/json": {"schema": schema}}}


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
        for kind in (operation.query, operation.body, *flat):
            if isinstance(kind, type) and issubclass(kind, Struct):
                kinds[kind] = None
    _, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS + "{name}")
    return {name: _portable(components[name]) for name in sorted(components)}


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
