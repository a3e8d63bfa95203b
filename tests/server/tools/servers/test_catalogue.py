"""What servers say of their tools, made into what models can say and nobody is harmed by."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import Tool as McpTool

from server.tools.configuration import ServerConfig
from server.tools.messages import ToolError
from server.tools.servers.catalogue import (
    MAX_DESCRIPTION,
    MAX_LIST_BYTES,
    MAX_TOOLS,
    Catalogue,
    make_catalogue,
    parse_arguments,
    sayable,
)

CONFIG = ServerConfig(name="notes", command="x", consent="once")
SCHEMA: dict[str, Any] = {"type": "object"}


def tool(name: str = "read", schema: dict[str, Any] | None = None, text: str = "") -> McpTool:
    return McpTool(name=name, description=text, input_schema=SCHEMA if schema is None else schema)


def offered(*tools: McpTool) -> Catalogue:
    return make_catalogue(CONFIG, tools)


def bomb(depth: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, depth):
        reference = {"$ref": f"#/$defs/d{number - 1}"}
        definitions[f"d{number}"] = {"anyOf": [reference] * 10}
    last = {"$ref": f"#/$defs/d{depth - 1}"}
    return {"type": "object", "properties": {"x": last}, "$defs": definitions}


@given(st.text(max_size=200))
def test_every_name_is_sayable_or_none(original: str) -> None:
    name = sayable("notes", original)
    assert name is None or re.fullmatch(r"notes__[A-Za-z0-9_-]{1,57}", name)
    assert name is None or original.isprintable() or not original.isascii()


def test_names_that_had_to_be_changed_do_not_meet() -> None:
    names = [sayable("notes", one) for one in ("a.b", "a/b", "a_b", "x" * 60 + "1", "x" * 60 + "2")]
    assert len({*names}) == 5
    assert names[2] == "notes__a_b"


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b]0;owned\x07", "a\u202eb", "x" * 129])
def test_names_that_a_terminal_would_obey_are_left_out(name: str) -> None:
    catalogue = offered(tool(name), tool("read"))
    assert list(catalogue.tools) == ["notes__read"]
    assert "left out" in catalogue.left_out and catalogue.left_out.isprintable()


def test_a_tool_carries_the_operators_limits() -> None:
    one = offered(tool(text="Reads.")).tools["notes__read"]
    assert (one.original, one.tool.consent, one.tool.description) == ("read", "once", "Reads.")


def test_descriptions_are_cut_and_lose_what_a_terminal_obeys() -> None:
    (one,) = offered(tool(text="a\x1b[2J\u202eb\n" + "c" * 9000)).tools.values()
    assert one.tool.description.startswith("a[2Jb\ncc")
    assert len(one.tool.description) <= MAX_DESCRIPTION


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "description": "x" * 20_000},
        {"type": "string"},
        bomb(9),
        {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"x": {"$ref": "https://elsewhere.example/"}}},
        {"type": "object", "properties": {"x": {"const": float("nan")}}},
        {"type": "object", "properties": {"\x1b[2J": {}}},
        json.loads('{"x": ' * 40 + "1" + "}" * 40),
    ],
)
def test_a_schema_that_would_harm_is_left_out(schema: dict[str, Any]) -> None:
    assert list(offered(tool("bad", schema), tool("good")).tools) == ["notes__good"]


def test_a_schema_that_refers_to_itself_is_offered() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert len(offered(tool("tree", tree), tool("small", bomb(3))).tools) == 2


def test_a_list_has_a_bound_in_number_and_bytes() -> None:
    many = offered(*(tool(f"t{number}") for number in range(MAX_TOOLS + 5)))
    assert len(many.tools) == MAX_TOOLS and "more than" in many.left_out
    long = offered(*(tool(f"t{number}", text="x" * MAX_DESCRIPTION) for number in range(100)))
    assert len(long.tools) == MAX_LIST_BYTES // (MAX_DESCRIPTION + len('{"type": "object"}'))


def test_of_two_tools_of_one_name_the_first_is_offered() -> None:
    catalogue = offered(tool(text="one"), tool(text="two"))
    assert [one.tool.description for one in catalogue.tools.values()] == ["one"]


CHECKED = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": ["string", "null"]},
        "e": {"enum": [1, "a"]},
        "p": {"type": "string", "pattern": "(a+)+$"},
        "odd": {"type": "no type of JSON"},
    },
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (b"{", "the arguments are no JSON"),
        (b"[" * 100_000, "the arguments are no JSON"),
        (b'{"n": NaN}', "the arguments are no JSON"),
        (b"\xff", "the arguments are no JSON"),
        (rb'{"n": 1, "s": "\ud800"}', "the arguments are no JSON"),
        (rb'{"n": 1, "\ud800": 1}', "the arguments are no JSON"),
        (b'{"n":' * 100 + b"1" + b"}" * 100, "the arguments are no JSON"),
        (b"[]", "the arguments are no JSON object"),
        (b"{}", "n is missing"),
        (b'{"n": 1, "x": 2}', "x is unknown"),
        (b'{"n": "1"}', "n must be of type integer"),
        (b'{"n": true}', "n must be of type integer"),
        (b'{"n": 1.5}', "n must be of type integer"),
        (b'{"n": 1, "s": 2}', "s must be of type string or null"),
        (b'{"n": 1, "e": true}', "e is none of its choices"),
    ],
)
def test_arguments_that_are_plainly_wrong_are_refused(arguments: bytes, line: str) -> None:
    with pytest.raises(ToolError, match=line) as raised:
        parse_arguments(arguments, CHECKED)
    assert (raised.value.code, raised.value.may_have_run) == ("tool_arguments_invalid", False)


def test_what_takes_long_to_check_is_left_to_the_server() -> None:
    given = {"n": 1.0, "s": None, "e": "a", "p": "a" * 5000 + "b", "odd": 1}
    assert parse_arguments(json.dumps(given).encode(), CHECKED) == given
    assert parse_arguments(b"", {"type": "object"}) == {}
