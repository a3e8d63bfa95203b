"""Ask a running Parley one question and print the answer as it comes; Ctrl-C stops the answer.

python examples/python_client.py --data-dir data "Tell me a long story."

It needs the `websockets` package and nothing of Parley. docs/protocol.md explains every frame.
"""

import argparse
import asyncio
import json
import signal
import uuid
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def ask(socket: ClientConnection, question: str) -> dict[str, Any]:
    """Begin a session, ask, print what comes, and return the answer's last frame."""
    key = uuid.uuid4().hex  # names the question, so that sending it twice asks it once
    await send(socket, "session.create", idempotency_key=key, event_id=key)
    async for message in socket:
        frame = json.loads(message)
        match frame["type"]:
            case "session.created" if frame.get("event_id") == key:  # other tabs create, too
                session_id = frame["session"]["id"]
                create = {"session_id": session_id, "idempotency_key": key, "input": question}
                await send(socket, "response.create", **create)
                stop_on_ctrl_c(socket, session_id, key)
            case "response.output_text.delta":
                print(frame["delta"], end="", flush=True)
            case "response.done":
                return dict(frame["response"])
            case "error":
                raise SystemExit(f"{frame['error']['code']}: {frame['error']['message']}")
    raise SystemExit(f"closed: {socket.close_code} {socket.close_reason}")


def stop_on_ctrl_c(socket: ClientConnection, session_id: str, key: str) -> None:
    """With the key, the stop also finds an answer that has not begun yet."""
    stop = {"session_id": session_id, "idempotency_key": key}
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGINT, lambda: asyncio.ensure_future(send(socket, "stop", **stop))
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Tell me a long story.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the server's")
    options = parser.parse_args()
    url = json.loads((options.data_dir / "server.json").read_text())["url"]
    token = (options.data_dir / "token").read_text().strip()
    async with connect(
        url.replace("http", "ws", 1) + "/v1/ws",
        subprotocols=[Subprotocol("chat.v1")],
        additional_headers={"Authorization": f"Bearer {token}"},
    ) as socket:
        response = await ask(socket, options.question)
    reason, usage = response["status_details"]["reason"], response["usage"]
    print(f"\n[{response['status']}: {reason}, {usage['output_tokens']} tokens]")


if __name__ == "__main__":
    asyncio.run(main())
