"""`Scripts`: each script gets exactly the arguments that it names, unchanged."""

import re

import pytest

from sessions.connection.scripts import FOLDER, Script, Scripts, Value
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat

PRELUDE = (FOLDER / "prelude.lua").read_text()
SCRIPTS = Scripts()
ECHO = Script.of(
    "echo", PRELUDE, "read_args({'a', 'b'}, {'c', 'd'})\nreturn {args.a, args.b, args.c, args.d}"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_reads_exactly_the_arguments_that_it_names(name: str) -> None:
    code = re.sub(r"--.*", "", SCRIPTS[name].source)
    assert set(re.findall(r"\bargs\.(\w+)", code)) == SCRIPTS[name].takes


def test_no_two_scripts_have_the_same_name() -> None:
    assert len(SCRIPTS) == len(list(FOLDER.rglob("*.lua"))) - 1  # the prelude


async def test_arguments_arrive_unchanged(store: SessionStore) -> None:
    key = store.keys.system
    binary = bytes(range(256))
    words = ECHO.pack({"a": binary, "b": 2**53, "c": [], "d": ["naïve", 0.5, b"", "0"]})
    reply = await store.client.call("EVAL", ECHO.source, 1, key, *words)
    assert reply == [binary, b"9007199254740992", [], ["naïve".encode(), b"0.5", b"", b"0"]]
    words = ECHO.pack({"a": None, "b": "", "c": range(5000), "d": ()})
    reply = await store.client.call("EVAL", ECHO.source, 1, key, *words)
    assert reply == [b"", b"", [b"%d" % number for number in range(5000)], []]


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"a": 1, "c": (), "d": ()}, r"missing \['b'\]"),
        ({"a": 1, "b": 2, "c": (), "d": (), "e": 3}, r"unknown \['e'\]"),
        ({"a": 1, "bb": 2, "c": (), "d": ()}, r"missing \['b'\], unknown \['bb'\]"),
        ({"a": (), "b": 2, "c": (), "d": ()}, "one a"),
        ({"a": 1, "b": 2, "c": None, "d": ()}, "a list of c"),
        ({"a": 1, "b": 2, "c": (), "d": "word"}, "a list of d"),
    ],
)
def test_other_arguments_than_the_script_names_are_refused(
    given: dict[str, Value], refusal: str
) -> None:
    with pytest.raises(TypeError, match=refusal):
        ECHO.pack(given)


async def test_a_call_that_is_refused_sends_nothing(chat: Chat) -> None:
    num_calls = chat.store.client.num_calls
    with pytest.raises(TypeError, match=r"read_session\.lua: missing"):
        await chat.store.client.script("read_session", [], uid="alice")
    assert chat.store.client.num_calls == num_calls


def test_a_script_that_does_not_call_read_args_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mute\.lua"):
        Script.of("mute", PRELUDE, "-- read_args({'a'})\nreturn 1")


def test_a_script_is_sent_with_the_functions_of_the_prelude_that_it_calls() -> None:
    defined = re.findall(r"^local function (\w+)", SCRIPTS["append"].source, re.M)
    shared = ["read_args", "now_ms", "is_live", "ended", "response_payload", "is_outage"]
    assert defined == [*shared, "append", "taken"]
