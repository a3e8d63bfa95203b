"""The conversation printed in docs/protocol.md, held with a server as it is written there."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from server.protocol import client_frames as protocol
from server.protocol import server_frames
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.root import ROOT

PAGE = (ROOT / "docs" / "protocol.md").read_text()
PLACEHOLDER = re.compile(r"(ses|msg|resp|conn)_[A-Z0-9]\Z")
# What another run of the same conversation has otherwise, and what a cut of the text decides.
VARYING = {"epoch", "queue_ms", "cached_tokens", "server_time", "sequence_number"}
DELTA = "response.output_text.delta"


def conversation() -> list[tuple[str, Frame]]:
    """The lines of the first example: who sends, and what."""
    block = PAGE.split("**A conversation**")[1].split("```")[1]
    return [(line[0], json.loads(line[2:])) for line in block.strip().splitlines()]


class Names:
    """What the page's short ids stand for in this run."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def put(self, value: Any) -> Any:
        """The same with real ids in the places of short ones."""
        if isinstance(value, dict):
            return {key: self.put(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.put(each) for each in value]
        return self._real.get(value, value) if isinstance(value, str) else value

    def match(self, written: Any, real: Any, where: str) -> None:
        """Every written field is there, with the same value; a new short id gets its meaning."""
        if isinstance(written, dict):
            for key, value in written.items():
                assert key in real, f"{where} has no {key}: {real}"
                if key in VARYING:
                    assert type(real[key]) is type(value), f"{where}.{key}: {real[key]}"
                else:
                    self.match(value, real[key], f"{where}.{key}")
        elif isinstance(written, str) and PLACEHOLDER.match(written):
            assert self._real.setdefault(written, real) == real, f"{where}: {written} is {real}"
        else:
            assert written == real, f"{where}: written {written!r}, got {real!r}"


def streams(frames: list[Frame]) -> dict[str, list[Frame]]:
    """The frames of each log, and those of none by type; deltas that follow each other as one."""
    found: dict[str, list[Frame]] = defaultdict(list)
    for frame in frames:
        if "sequence_number" in frame:
            stream = found[f"response {frame.get('response_id') or frame['response']['id']}"]
            if frame["type"] == DELTA and stream[-1]["type"] == DELTA:
                stream[-1] = {**stream[-1], "delta": stream[-1]["delta"] + frame["delta"]}
                continue
        else:
            stream = found["session" if "offset" in frame else frame["type"]]
        stream.append({k: v for k, v in frame.items() if k != "first_sequence_number"})
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("demo") / "data", "demo")
    try:
        yield server.start()
    finally:
        server.close()


def turns() -> list[tuple[list[Frame], list[Frame]]]:
    """What the client sends, each with everything that the server sends until the next."""
    found: list[tuple[list[Frame], list[Frame]]] = [([], [])]
    for side, frame in conversation():
        if side == "C":
            found.append(([frame], []))
        else:
            found[-1][1].append(frame)
    return found


async def test_the_conversation_on_the_page_is_what_a_server_says(demo: Server) -> None:
    names = Names()
    async with Client(demo) as client:
        place = 0
        for number, (requests, written) in enumerate(turns()):
            for request in requests:
                await client.send_frame(names.put(request))
            expected = streams(written)

            def arrived(
                since: int = place, wanted: Any = expected
            ) -> dict[str, list[Frame]] | None:
                found = streams(client.frames[since:])
                enough = sum(map(len, found.values())) >= sum(map(len, wanted.values()))
                return found if enough else None

            got = await client.wait(arrived, f"the frames of turn {number}")
            place = len(client.frames)
            # Responses are named by the page's short ids on one side, by real ones on the other.
            pairs = zip(sorted(expected), sorted(got), strict=True)
            for name, real_name in sorted(pairs, key=lambda pair: pair[0] != "session"):
                assert len(expected[name]) == len(got[real_name]), (name, got[real_name])
                for one, other in zip(expected[name], got[real_name], strict=True):
                    names.match(one, other, one["type"])


def test_every_example_on_the_page_is_made_of_fields_that_frames_have() -> None:
    lines = re.findall(r"^([CS]) (\{.*\})$", PAGE, re.MULTILINE)
    assert len(lines) > 30
    for side, text in lines:
        frame = json.loads(text)
        kinds: Any = protocol.TYPES if side == "C" else server_frames.TYPES
        fields = {"type", *kinds[frame["type"]].__struct_fields__}
        assert set(frame) <= fields, frame


def test_the_page_names_files_that_are_there() -> None:
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
