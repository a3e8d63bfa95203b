"""What the model of these tests says to which question, and chats that offer it tools."""

from collections.abc import Sequence
from typing import Any

from tests.end_to_end.clients.http_client import Http, fresh_key
from tests.end_to_end.oracle.scripted_model import Pieces, call, words
from tests.end_to_end.site.harness import Server

THOUGHT = """\
They ask about **two** towns.

1. Ask for Brno
2. Ask for Prague

```python
print("warmer")
```
"""
LONG_THOUGHT = "".join(
    f"Thought {number} of many, which follows the one before.\n\n" for number in range(40)
)
ARGUMENTS = '{"city": "Brno", "days": 3, "id": 12345678901234567890}'
COUNT = "How far can you count?"
THINK = "What do you think?"
THINK_LONG = "What do you think for long?"
WEATHER = "How is the weather?"
BOTH = "How is the weather in both?"
SCRIPTS: dict[str, Sequence[Pieces]] = {
    COUNT: [[f"{number} " for number in range(3000)]],
    THINK: [["<think>\n", *words(THOUGHT), "\n</think>\n\n", *words("It is warmer in **Brno**.")]],
    THINK_LONG: [["<think>\n", *words(LONG_THOUGHT), "\n</think>\n\n", *words("I have thought.")]],
    WEATHER: [
        [*words("Let me look. "), "\n", *call("weather", ARGUMENTS, size=2)],
        words("It rains in Brno."),
    ],
    BOTH: [
        [
            *call("weather", '{"city": "Brno"}'),
            "\n",
            *call("clock", "{}"),
            "\n",
            *call("weather", "[]"),
        ],
        words("It rains."),
    ],
}
EASTER = "How long is it till Easter?"
AGAIN = "And till Christmas?"
ECHO = "Say it again."
FAIL = "Fail."
WAIT = "Wait for me."
SCRIPTS |= {
    EASTER: [
        [
            *words("Let me look. "),
            "\n",
            *call("clock__days_between", '{"first": "2026-11-26", "second": "2027-03-28"}'),
        ],
        words("It is 122 days."),
    ],
    AGAIN: [
        call("clock__days_between", '{"first": "2026-11-26", "second": "2026-12-25"}'),
        words("It is 29 days."),
    ],
    ECHO: [call("good__echo", '{"text": "a\\u202eb"}'), words("It was said.")],
    FAIL: [call("good__fail", "{}"), words("It has failed.")],
    WAIT: [call("good__wait", '{"name": "it"}'), words("It is over.")],
}
TOOLS = [{"type": "function", "name": name} for name in ("weather", "clock")]


async def new_chat(server: Server, title: str, **settings: Any) -> str:
    """The id of a session that offers a client's tools."""
    settings = {"tools": TOOLS, "temperature": 0, **settings}
    async with Http(server) as http:
        return str((await http.new_session(title=title, settings=settings))["id"])


async def new_chat_with_tools(server: Server, title: str) -> str:
    """The id of a session that offers tools which the server runs."""
    offered = [{"type": "mcp", "server_label": label} for label in ("clock", "good")]
    return await new_chat(server, title, tools=offered)


async def give_back(server: Server, session: str, outputs: Sequence[str]) -> None:
    """What a client of these tools gives back for the valid calls of the last answer."""
    async with Http(server) as http:
        path = f"/v1/sessions/{session}"
        called = (await http.get(f"{path}/messages")).json()["messages"][-1]["tool_calls"]
        valid = [each["call_id"] for each in called if each["status"] == "completed"]
        given = [
            {"type": "function_call_output", "call_id": call_id, "output": output}
            for call_id, output in zip(valid, outputs, strict=True)
        ]
        answer = await http.post(f"{path}/responses", {"input": given}, headers=fresh_key())
        assert answer.status_code == 202, answer.text
