"""`ToolOffers`: `mcp` entries become functions, or are refused by name."""

from typing import Any

import pytest

from server.commands.tools.offering import ToolOffers
from server.protocol.errors import ApiError
from server.tools.messages import Tool, ToolError, Tools, Trouble


def tool(server: str, title: str, schema: Any = None) -> Tool:
    return Tool(
        name=f"{server}__{title}",
        server=server,
        title=title,
        description=f"what {title} does",
        input_schema=schema or {"type": "object"},
        is_read_only=True,
        consent="once",
        max_calls_per_answer=3,
        timeout_seconds=5.0,
    )


class Client:
    """Of a tool process that knows these."""

    def __init__(self, *tools: Tool, troubles: tuple[Trouble, ...] = ()) -> None:
        names = [one.server for one in tools] + [one.server for one in troubles]
        servers = dict.fromkeys(names)
        self._tools = Tools(0, tools, troubles, tuple(servers))
        self.asked: list[set[str]] = []

    async def list_tools(self, wait_seconds: float = 0.0, servers: Any = None) -> Tools:
        self.asked.append(set(servers or ()))
        return self._tools


class Nobody:
    async def list_tools(self, wait_seconds: float = 0.0, servers: Any = None) -> Tools:
        raise ToolError("tool_server_unavailable", "there is no tool process")


def offers(client: Any) -> ToolOffers:
    return ToolOffers(client)


def mcp(label: str, *allowed: str) -> dict[str, Any]:
    more = {"allowed_tools": list(allowed)} if allowed else {}
    return {"type": "mcp", "server_label": label, **more}


OWN = {"type": "function", "name": "weather"}


async def test_an_entry_becomes_the_functions_of_its_server_beside_the_clients() -> None:
    client = Client(tool("clock", "now"), tool("clock", "then"), tool("other", "x"))
    found = await offers(client).expanded([OWN, mcp("clock")])
    assert [one["name"] for one in found] == ["weather", "clock__now", "clock__then"]
    assert client.asked == [{"clock"}]
    assert found[1] == {
        "type": "function",
        "name": "clock__now",
        "description": "what now does",
        "parameters": {"type": "object"},
        "server_label": "clock",
        "consent": "once",
        "max_calls": 3,
    }


@pytest.mark.parametrize("name", ["now", "clock__now"])
async def test_allowed_tools_are_names_at_the_server_or_at_the_model(name: str) -> None:
    client = Client(tool("clock", "now"), tool("clock", "then"))
    found = await offers(client).expanded([mcp("clock", name)])
    assert [one["name"] for one in found] == ["clock__now"]


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ([mcp("none")], "tool_not_found", "settings.tools[0].server_label"),
        ([OWN, mcp("clock", "never")], "tool_not_found", "settings.tools[1].allowed_tools"),
        ([mcp("down")], "tool_server_unavailable", "settings.tools[0]"),
        (
            [mcp("clock"), {"type": "function", "name": "clock__now"}],
            "invalid_field",
            "settings.tools",
        ),
        ([mcp("wide")], "tools_too_large", "settings.tools"),
    ],
)
async def test_what_cannot_be_offered_is_refused_by_name(
    tools: list[dict[str, Any]], code: str, param: str
) -> None:
    client = Client(
        tool("clock", "now"),
        tool("wide", "x", {"type": "object", "description": "w" * 70_000}),
        troubles=(Trouble("down", "tool_server_unavailable", "down: is not ready yet"),),
    )
    with pytest.raises(ApiError) as refused:
        await offers(client).expanded(tools)
    assert (refused.value.code, refused.value.param) == (code, param)


async def test_a_server_that_lacks_some_of_its_tools_offers_the_others() -> None:
    trouble = Trouble("clock", "tool_left_out", "left out: it")
    client = Client(tool("clock", "now"), troubles=(trouble,))
    assert len(await offers(client).expanded([mcp("clock")])) == 1


async def test_a_tool_process_that_is_away_is_said_to_be() -> None:
    for ask in (offers(Nobody()).listing(), offers(Nobody()).expanded([mcp("clock")])):
        with pytest.raises(ApiError) as refused:
            await ask
        assert refused.value.code == "tool_server_unavailable"
