"""What the server says first is built as the frame that is declared for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from server.protocol.encoding import encode
from server.protocol.server_frames import (
    TYPES,
    ConnectionRestored,
    DoneEntry,
    ResponseCancelling,
    ResponseDone,
)
from tests.helpers.root import ROOT

MODULES = sorted(path for top in ("server", "sessions") for path in (ROOT / top).rglob("*.py"))
# What the command line draws is a client: its frames go to a server, with ids of their own.
SERVING = [path for path in MODULES if "terminal" not in path.parts]

NUMBERS = {"sequence_number", "fence", "offset", "event_id", "replayed"}
NUMBERING = (
    "server/protocol/entries.py",
    "server/live/response_log.py",
    "server/api/responses/answer/emitter.py",  # OpenAI's events, which have numbers of their own
)


def types_of_dictionaries(path: Path) -> Iterator[str]:
    """What dictionaries in this module say is their `type`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "type":
                    yield ast.unparse(value)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_builds_a_frame_as_a_dictionary(path: Path) -> None:
    frames = {repr(kind) for kind in TYPES}
    found = types_of_dictionaries(path)
    assert [kind for kind in found if kind in frames or kind.startswith("f'")] == []


def patches_of_dictionaries(path: Path) -> Iterator[str]:
    """Fields of frames that this module adds to copies of dictionaries."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict) and None in node.keys:
            names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            yield from (name for name in names if isinstance(name, str) and name in NUMBERS)


@pytest.mark.parametrize("path", SERVING, ids=lambda path: str(path.relative_to(ROOT)))
def test_entries_get_their_numbers_in_one_place_for_each_kind_of_log(path: Path) -> None:
    is_such_a_place = str(path.relative_to(ROOT)) in NUMBERING
    assert bool([*patches_of_dictionaries(path)]) == is_such_a_place


def test_a_frame_is_encoded_with_its_type_and_without_what_is_unset() -> None:
    assert orjson.loads(encode(ConnectionRestored(store="ok"))) == {
        "type": "connection.restored",
        "store": "ok",
    }


def test_a_frame_of_another_worker_is_sent_on_as_it_is() -> None:
    frame = {"type": "response.queued", "of_a_later_version": [1, None]}
    assert orjson.loads(encode(frame)) == frame


def test_a_frame_is_published_as_it_is_sent() -> None:
    frame = ResponseCancelling(response_id=None, by="user", confirmed=False, durable=True)
    assert frame.wire() == orjson.loads(encode(frame))


def test_an_entry_of_a_log_is_its_frame_without_numbers() -> None:
    numbers = {"sequence_number", "fence"}
    assert numbers.isdisjoint(DoneEntry.__struct_fields__)
    assert set(ResponseDone.__struct_fields__) - {*DoneEntry.__struct_fields__} == {
        *numbers,
        "text",
        "replayed",
    }
