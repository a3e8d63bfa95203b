"""The published schemas: what the definitions give, whole, and known to the documentation."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.protocol import client_frames as protocol
from server.protocol import server_frames
from server.protocol.close_codes import CloseCode
from server.protocol.errors import CODES
from server.protocol.schemas import DOCS, asyncapi, files, json_schema
from tests.helpers.declared_frames import check_server_frame

PROTOCOL = (DOCS / "protocol.md").read_text()


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_the_files_in_docs_are_what_the_definitions_give(path: Path) -> None:
    assert path.read_bytes() == files()[path], "run `python -m server.protocol.schemas`"


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for each in value.values() for ref in references(each)]
    if isinstance(value, list):
        return [ref for each in value for ref in references(each)]
    return []


@pytest.mark.parametrize("document", [json_schema(), asyncapi()], ids=["schema", "asyncapi"])
def test_every_reference_leads_somewhere(document: Any) -> None:
    assert references(document)
    for reference in references(document):
        place = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
        assert isinstance(place, dict)


def test_every_frame_is_in_both_documents_and_in_protocol_md() -> None:
    types = {**protocol.TYPES, **server_frames.TYPES}
    assert set(asyncapi()["components"]["messages"]) == set(types)
    known = [words["properties"]["type"]["enum"] for words in _frames(json_schema())]
    assert sorted(word for enum in known for word in enum) == sorted(types)
    for word in types:
        assert f"`{word}`" in PROTOCOL, word


def _frames(document: Any) -> list[Any]:
    either = document["$defs"]["ClientFrame"]["anyOf"] + document["$defs"]["ServerFrame"]["anyOf"]
    return [document["$defs"][ref["$ref"].rpartition("/")[2]] for ref in either]


def test_every_field_of_a_frame_is_in_protocol_md() -> None:
    words = set(re.findall(r"\w+", PROTOCOL))
    for frame in _frames(json_schema()):
        assert not set(frame["properties"]) - words, frame["title"]


def test_every_error_and_close_code_is_in_protocol_md() -> None:
    for code in CODES:
        assert f"`{code}`" in PROTOCOL, code
    for close in CloseCode:
        assert re.search(rf"\b{int(close)}\b", PROTOCOL), close


def test_patterns_are_what_any_regular_expression_engine_knows() -> None:
    patterns = set(re.findall(r'"pattern": "(.*?)"', json.dumps(json_schema())))
    assert patterns
    for pattern in patterns:
        assert re.fullmatch(r"\^[^\\]*\$", pattern), pattern


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "pong", "t": 1},
        {"type": "pong", "t": 1, "server_time": 5, "more": 1},
        {"type": "pang", "t": 1, "server_time": 5},
        {"t": 1},
        {"type": "connection.draining", "reconnect_after_ms": -1},
    ],
)
def test_a_frame_that_is_not_as_defined_is_noticed(frame: dict[str, Any]) -> None:
    check_server_frame({"type": "pong", "t": 1, "server_time": 5})
    with pytest.raises(msgspec.ValidationError):
        check_server_frame(frame)
