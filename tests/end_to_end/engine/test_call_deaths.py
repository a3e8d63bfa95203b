"""Thoughts and calls of tools whose core or owner is killed amid them: all is as undisturbed."""

import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.oracle.spelling_model import SPELLED, build_spelling_model
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import owner_and_other
from tests.end_to_end.site.recovery import ask_when_it_may
from tests.helpers.tiny_model import ORACLE_CHAT_TEMPLATE

THOUGHT, ARGUMENTS = "response.reasoning_text.delta", "response.function_call_arguments.delta"
TEXT, ADDED = "response.output_text.delta", "response.output_item.added"
SNAPSHOT = "response.output_text.snapshot"
REASONED = f"Hm: é😀, {SPELLED[:40]}</thin> so."
ASKED = [
    ("weather", {"city": f"Brno </tool_call {SPELLED[40:90]}", "days": [1, {"a": "}"}], "é": ""}),
    ("clock", {}),
    ("weather", {"city": 'Praha "\\\n'}),
]
SAID = "I look, <tool_box>: 👩\u200d🚀."
WRITTEN = f"<think>\n{REASONED}\n</think>\n\n{SAID}" + "".join(
    "\n<tool_call>\n"
    + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    + "\n</tool_call>"
    for name, arguments in ASKED
)
CHAT_TEMPLATE = (
    "{# It writes <tool_call> and </tool_call>. #}{% if tools %}{% endif %}" + ORACLE_CHAT_TEMPLATE
)
TOOLS = [{"type": "function", "name": name} for name in ("weather", "clock")]
SETTINGS: Frame = {"temperature": 0, "max_output_tokens": 1000, "tools": TOOLS}
NUM_KILLS = 25
# Who is killed, and of which frames so many have come by then.
MOMENTS = [
    ("core", THOUGHT, 4),
    pytest.param("core", ADDED, 1, marks=pytest.mark.slow),
    pytest.param("owner", TEXT, 1, marks=pytest.mark.slow),
    ("owner", ARGUMENTS, 5),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("calls")
    model, _ = build_spelling_model(
        folder / "model", WRITTEN, ends=True, max_positions=2048, chat_template=CHAT_TEMPLATE
    )
    environment = {**TESTING, "PARLEY_WORKERS": "2", "PARLEY_PACE": "50"}
    server = Server(folder / "data", model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


def told(answer: Answer, response: str) -> list[Any]:
    """What the frames say, without numbers; deltas that follow each other are one."""
    rows: list[list[Any]] = []
    for frame in answer.frames:
        kind = frame["type"]
        assert kind != SNAPSHOT
        if kind in (THOUGHT, TEXT, ARGUMENTS):
            begin = [kind, frame.get("item_id")]
            if rows and rows[-1][:2] == begin:
                rows[-1][2] += frame["delta"]
            else:
                rows.append([*begin, frame["delta"]])
        elif kind.startswith(("response.output_item", "response.function_call")):
            rows.append([kind, frame.get("item_id"), frame.get("item"), frame.get("arguments")])
    found: list[Any] = without(rows, response)
    return found


def without(value: Any, response: str) -> Any:
    """The same, whichever response it was."""
    text = json.dumps(value)
    assert response.removeprefix("resp_") in text
    return json.loads(text.replace(response.removeprefix("resp_"), "R"))


def stored(server: Server, session: str, response: str) -> Any:
    """What the answer's message is in the end."""
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    names = ("content", "reasoning", "tool_calls", "status", "text_length", "status_details")
    return without({name: messages[1][name] for name in names}, response)


async def ask(owner: Client, other: Client) -> tuple[str, str]:
    session = await owner.new_session()
    await other.reply("session.subscribe", session_id=session)
    return session, await ask_when_it_may(owner, session, "How is it?", SETTINGS)


async def ended(
    server: Server, client: Client, session: str, response: str
) -> tuple[list[Any], Any, Frame]:
    answer = await client.done(response)
    assert answer.done is not None
    return told(answer, response), stored(server, session, response), answer.done["response"]


class Check:
    """Kills processes of a server, and looks at what goes on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._calm: list[Any] | None = None  # what is sent and stored
        self.num_disturbed = 0

    async def kill(self, victim: str, kind: str, number: int) -> None:
        """When so many of these frames have come, the core or the owner dies."""
        server = self._server
        async with owner_and_other(server) as (owner, other, pid):
            if self._calm is None:
                *self._calm, summary = await ended(server, other, *await ask(other, other))
                assert "restarts" not in summary
            session, response = await ask(owner, other)

            def is_time() -> bool:
                if (answer := other.answers.get(response)) is None:
                    return False
                frames = [frame for frame in answer.frames if frame["type"] == kind]
                return len(frames) >= number or answer.done is not None

            await other.wait(is_time, f"{number} frames {kind}")
            if victim == "core":
                server.kill_child("engine.core")
            else:
                server.history.fault("kill -9 of the owner")
                os.kill(pid, signal.SIGKILL)
            *found, summary = await ended(server, other, session, response)
        assert found == self._calm
        self.num_disturbed += "restarts" in summary
        message = found[1]
        calls = [(call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
        assert calls == ASKED and message["reasoning"].strip() == REASONED
        assert message["content"][0]["text"] == SAID


@pytest.fixture(scope="module")
def check(server: Server) -> Check:
    return Check(server)


@pytest.mark.parametrize(("victim", "kind", "number"), MOMENTS)
async def test_what_goes_on_after_a_kill_is_what_it_would_have_been(
    check: Check, victim: str, kind: str, number: int
) -> None:
    before = check.num_disturbed
    await check.kill(victim, kind, number)
    assert check.num_disturbed == before + 1


@pytest.mark.slow
async def test_so_it_is_at_random_moments(check: Check) -> None:
    seed = int(os.environ.get("CALLS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CALLS_SEED={seed}")
    rng, before = random.Random(seed), check.num_disturbed
    for _ in range(NUM_KILLS):
        kind, most = rng.choice(((THOUGHT, 20), (TEXT, 2), (ARGUMENTS, 20), (ADDED, 3)))
        await check.kill(rng.choice(("core", "owner")), kind, rng.randint(1, most))
    assert check.num_disturbed - before >= NUM_KILLS / 2  # the others were over by then
