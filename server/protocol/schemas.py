"""JSON Schemas of every frame, both ways, and an AsyncAPI 3 document, made from the definitions.

`python -m server.protocol.schemas` writes both into docs/schemas/; a test fails when what lies
there is not what the definitions give. A server answers `/asyncapi.json` with the same document.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import orjson

from server.protocol import client_frames as protocol
from server.protocol import server_frames

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCHEMA_FILE = DOCS / "schemas" / "chat.v1.schema.json"
ASYNCAPI_FILE = DOCS / "schemas" / "asyncapi.json"

Document = dict[str, Any]


@cache
def json_schema() -> Document:
    """One schema document: `ClientFrame` and `ServerFrame` are what either side may send."""
    definitions = _definitions("#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "chat.v1",
        "description": "The frames of Parley's websocket protocol; see protocol.md.",
        "anyOf": [{"$ref": "#/$defs/ClientFrame"}, {"$ref": "#/$defs/ServerFrame"}],
        "$defs": {
            "ClientFrame": {"anyOf": _references(_client_names(), "#/$defs/")},
            "ServerFrame": {"anyOf": _references(_server_names(), "#/$defs/")},
            **definitions,
        },
    }


@cache
def asyncapi() -> Document:
    """What a server sends and receives at `/v1/ws`, as AsyncAPI 3."""
    definitions = _definitions("#/components/schemas/{name}")
    directions = {"receive": _client_names(), "send": _server_names()}
    named = {word: name for names in directions.values() for word, name in names.items()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Parley",
            "version": "1",
            "description": "The websocket protocol chat.v1. Ordering, resume, the stop guarantee "
            "and the close codes are described in protocol.md.",
        },
        "channels": {
            "chat": {
                "address": "/v1/ws",
                "messages": {word: {"$ref": f"#/components/messages/{word}"} for word in named},
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": {
            action: {
                "action": action,
                "channel": {"$ref": "#/channels/chat"},
                "messages": [{"$ref": f"#/channels/chat/messages/{word}"} for word in names],
            }
            for action, names in directions.items()
        },
        "components": {
            "messages": {
                word: {
                    "name": word,
                    "contentType": "application/json",
                    "summary": definitions[name].get("description", word),
                    "payload": {"$ref": f"#/components/schemas/{name}"},
                }
                for word, name in named.items()
            },
            "schemas": definitions,
        },
    }


def _client_names() -> dict[str, str]:
    """Frame type → name of its definition."""
    return {word: kind.__name__ for word, kind in protocol.TYPES.items()}


def _server_names() -> dict[str, str]:
    return {word: kind.__name__ for word, kind in server_frames.TYPES.items()}


def _references(names: Mapping[str, str], prefix: str) -> list[Document]:
    return [{"$ref": prefix + name} for name in dict.fromkeys(names.values())]


def _definitions(template: str) -> dict[str, Document]:
    client_kinds = tuple(dict.fromkeys(protocol.TYPES.values()))
    _, ours = msgspec.json.schema_components(client_kinds, ref_template=template)
    _, theirs = msgspec.json.schema_components(server_frames.FRAMES, ref_template=template)
    for kind in client_kinds:
        words = [word for word, other in protocol.TYPES.items() if other is kind]
        definition = ours[kind.__name__]
        definition["properties"] = {"type": {"enum": words}, **definition["properties"]}
        definition["required"] = ["type", *definition.get("required", ())]
    for definition in theirs.values():
        definition.pop("additionalProperties", None)  # clients ignore what they do not know
    both = {**theirs, **ours}
    return {name: _for_everybody(both[name]) for name in sorted(both)}


def _for_everybody(value: Any) -> Any:
    """Patterns in the regular expressions that JSON Schema knows; one line in descriptions."""
    if isinstance(value, dict):
        return {
            key: _words(each)
            if key in ("pattern", "description")
            and isinstance(each, str)  # or a field of that name
            else _for_everybody(each)
            for key, each in value.items()
        }
    return [_for_everybody(each) for each in value] if isinstance(value, list) else value


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace(r"\Z", "$")


def encode(document: Document) -> bytes:
    """As the files are written."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def files() -> dict[Path, bytes]:
    """Which file holds what."""
    return {SCHEMA_FILE: encode(json_schema()), ASYNCAPI_FILE: encode(asyncapi())}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_bytes(content)
