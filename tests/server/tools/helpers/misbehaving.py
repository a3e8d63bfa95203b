"""Servers that misbehave, one a name: `python misbehaving.py NAME`. The standard library only.

Each answers as a server should (`initialize`, `tools/list`, `ping`), but for what its name says.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FOLDER", "."))
TOOL = {"name": "act", "description": "", "inputSchema": {"type": "object"}}
# A program that does nothing until it is killed: what is tested is that it is.
FOREVER = "import time\nwhile True: time.sleep(1000)"


def say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def send(**message: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def answer(request: dict[str, Any], result: Any) -> None:
    send(id=request["id"], result=result)


def text(words: str = "done") -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def remember(*pids: int) -> None:
    """For the test, which waits for their end."""
    path = FOLDER / f"{NAME}-pids"
    path.with_suffix(".part").write_text(" ".join(map(str, pids)))
    path.with_suffix(".part").rename(path)


def sleep_forever() -> None:
    while True:
        time.sleep(1000)  # silent until it is killed


# ---- what each does when its tool is called ------------------------------------------------------


def endless_line(request: dict[str, Any]) -> None:
    while True:
        say("x" * 65536)


def huge_result(request: dict[str, Any]) -> None:
    answer(request, text("x" * 3_000_000))


def values_bomb(request: dict[str, Any]) -> None:
    structured = "[" + "[]," * 1_200_000 + "[]]"
    result = '{"content":[],"structuredContent":{"x":' + structured + "}}"
    say('{"jsonrpc":"2.0","id":' + str(request["id"]) + ',"result":' + result + "}\n")


def wrong_shape(request: dict[str, Any]) -> None:
    answer(request, {"content": 5})


def dies_in_call(request: dict[str, Any]) -> None:
    os._exit(7)


def leaves_child(request: dict[str, Any]) -> None:
    """It dies; its child holds the pipe, and another has left the group."""
    near = subprocess.Popen([sys.executable, "-c", FOREVER])
    far = subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
    remember(os.getpid(), near.pid, far.pid)
    os._exit(0)


def prints(request: dict[str, Any]) -> None:
    say("Loading model weights...\n\n[1, 2\n\x1b[2J\nnull\n42\n{}\n")
    answer(request, text())


def answers_plainly(request: dict[str, Any]) -> None:
    answer(request, text())


def list_changes(request: dict[str, Any]) -> None:
    for _ in range(100):
        send(method="notifications/tools/list_changed")
    answer(request, text())


def trickle(request: dict[str, Any]) -> None:
    while True:
        say("x")
        time.sleep(0.01)  # its pace is the misbehaviour: byte after byte


def ignores_cancel(request: dict[str, Any]) -> None:
    remember(os.getpid())
    sleep_forever()


def answers_twice(request: dict[str, Any]) -> None:
    answer(request, text("first"))
    answer(request, text("second"))


def other_ids(request: dict[str, Any]) -> None:
    for number in (request["id"] + 1, request["id"] - 1, str(request["id"]) + "x", None, 10**30):
        send(id=number, result=text("another's"))


def floods(request: dict[str, Any]) -> None:
    while True:
        send(method="notifications/message", params={"level": "info", "data": "x"})
        send(id=f"r{time.monotonic_ns()}", method="roots/list")


def floods_junk(request: dict[str, Any]) -> None:
    while True:
        say("x" * 1000 + "\n")


def deaf(request: dict[str, Any]) -> None:
    sleep_forever()


def floods_stderr(request: dict[str, Any]) -> None:
    while True:
        sys.stderr.write("\x1b[2Jx" * 1000 + "\n")


def asks_back(request: dict[str, Any]) -> None:
    """Wants to use the model, to ask the user, and to know folders."""
    for method in ("sampling/createMessage", "elicitation/create", "roots/list", "no/such"):
        send(id=f"mine-{method}", method=method, params={})
    refused = [json.loads(sys.stdin.readline()) for _ in range(4)]
    answer(request, text(" ".join("error" if "error" in one else "result" for one in refused)))


# ---- what it offers ------------------------------------------------------------------------------


def tools() -> list[dict[str, Any]]:
    if NAME == "many_tools":
        return [TOOL, *({**TOOL, "name": f"t{number}"} for number in range(10_000))]
    if NAME == "control_names":
        return [{**TOOL, "name": name} for name in ("act", "\x1b[2J", "a\nb", "", "\u202eact")]
    if NAME == "schema_bomb":
        definitions: dict[str, Any] = {"d0": {"type": "string"}}
        for number in range(1, 20):
            reference = {"$ref": f"#/$defs/d{number - 1}"}
            definitions[f"d{number}"] = {"anyOf": [reference] * 10}
        top = {"x": {"$ref": "#/$defs/d19"}}
        bomb = {"type": "object", "$defs": definitions, "properties": top}
        deep: dict[str, Any] = {}
        for _ in range(150):
            deep = {"type": "object", "properties": {"x": deep}}
        return [TOOL, {**TOOL, "name": "wide", "inputSchema": bomb}, {**TOOL, "inputSchema": deep}]
    return [TOOL]


def initialize(request: dict[str, Any]) -> None:
    if NAME == "silent":
        return
    if NAME == "garbage":
        say("\x00\xff garbage\n{]\n")
        return
    if NAME == "old_wrong_version":
        version = "1066-10-14"
    else:
        version = request["params"]["protocolVersion"]
    info = {"name": NAME, "version": "1"}
    answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})


def list_tools(request: dict[str, Any]) -> None:
    if NAME == "endless_pages":
        answer(request, {"tools": [], "nextCursor": str(time.monotonic_ns())})
    else:
        answer(request, {"tools": tools()})


def serve(act: Callable[[dict[str, Any]], None]) -> None:
    if NAME == "dies_at_start":
        sys.exit("\x1b[2J no configuration")
    handlers: dict[str, Callable[[dict[str, Any]], None]] = {
        "initialize": initialize,
        "tools/list": list_tools,
        "tools/call": act,
        "ping": lambda request: answer(request, {}),
    }
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            handlers[request["method"]](request)


if __name__ == "__main__":
    NAME = sys.argv[1]
    serve(globals().get(NAME, answers_plainly))
