"""Offer a model one tool, carry out what it calls, and print its answer.

python examples/tool_client.py --data-dir data "What time is it in Prague?"

The model must be one that calls tools. It needs the `websockets` package and nothing of Parley.
How to go on after a lost connection is in python_client.py. docs/protocol.md has all the rules.
"""

import argparse
import asyncio
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

MAX_ROUNDS = 5  # of calls, for one question
TOOLS = [
    {
        "type": "function",
        "name": "current_time",
        "description": "The time now in a time zone",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "description": "As in Europe/Prague"}},
            "required": ["zone"],
        },
    }
]


def carry_out(call: dict[str, Any]) -> str:
    """What the tool gives back. The arguments are a model's words: anything may be in them."""
    try:
        zone = json.loads(call["arguments"])["zone"]
        now = datetime.now(UTC if zone == "UTC" else ZoneInfo(zone))
    except Exception as error:
        return f"error: {error}"
    return now.isoformat(timespec="minutes")


async def receive(socket: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(await socket.recv())
    if frame["type"] == "error":
        raise SystemExit(f"{frame['error']['code']}: {frame['error']['message']}")
    return frame


async def answer(socket: ClientConnection, session_id: str, given: Any) -> list[dict[str, Any]]:
    """Print the answer to what is given; return the calls that it has ended with."""
    key = uuid.uuid4().hex
    ask = {"type": "response.create", "session_id": session_id, "idempotency_key": key}
    await socket.send(json.dumps({**ask, "input": given, "settings": {"tools": TOOLS}}))
    calls: list[dict[str, Any]] = []
    while True:
        frame = await receive(socket)
        if frame["type"] == "response.output_text.delta":
            print(frame["delta"], end="", flush=True)
        elif frame["type"] == "response.output_item.done":
            calls.append(frame["item"])
        elif frame["type"] == "response.done":
            print()
            return [call for call in calls if call["status"] == "completed"]


async def main(question: str, data_dir: Path) -> None:
    try:
        url = json.loads((data_dir / "server.json").read_text())["url"].replace("http", "ws", 1)
        headers = {"Authorization": f"Bearer {(data_dir / 'token').read_text().strip()}"}
    except FileNotFoundError as error:
        raise SystemExit(f"no server is running: there is no {error.filename}") from None
    protocols = [Subprotocol("chat.v1")]
    async with connect(
        f"{url}/v1/ws", subprotocols=protocols, additional_headers=headers
    ) as socket:
        create = {"type": "session.create", "idempotency_key": uuid.uuid4().hex}
        await socket.send(json.dumps(create))
        while (frame := await receive(socket))["type"] != "session.created":
            pass
        given: Any = question
        for _ in range(MAX_ROUNDS):
            calls = await answer(socket, frame["session"]["id"], given)
            if not calls:
                return
            given = []
            for call in calls:
                output = carry_out(call)
                print(f"[{call['name']} {call['arguments']}: {output}]")
                name = {"type": "function_call_output", "call_id": call["call_id"]}
                given.append({**name, "output": output})
        print("[the model only goes on calling]")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="What time is it in Prague?")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the server's")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.question, arguments.data_dir))
