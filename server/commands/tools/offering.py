"""`ToolOffers`: `mcp` entries of settings → the functions that an answer offers to its model.

What is offered is fixed, and stored, when an answer begins: a worker that takes it over
builds the same prompt, even if the servers offer something else by then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from server.protocol.errors import ApiError, invalid_field
from server.tools.client import ToolClient
from server.tools.messages import Tool, ToolError, Tools

WAIT_SECONDS = 10.0  # for a server that is just starting
LIST_SECONDS = 2.0  # likewise, when somebody only looks
MAX_OFFERED = 128  # tools of an answer, the client's own included
MAX_OFFERED_BYTES = 64 * 1024  # of all of them as JSON


class ToolOffers:
    """What this worker knows of the operator's servers, by its client of the tool process."""

    def __init__(self, client: ToolClient) -> None:
        self._client = client

    async def listing(self) -> Tools:
        """All servers. Raises `ApiError`."""
        try:
            return await self._client.list_tools(LIST_SECONDS)
        except ToolError as error:
            raise _unavailable("the tool process is away") from error

    async def expanded(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The tools with the functions of each server in place of its entry.

        Raises `ApiError` `tool_not_found`, `tool_server_unavailable`, `tools_too_large`, and
        `invalid_field` for a name that is there twice.
        """
        labels = {tool["server_label"] for tool in tools if tool["type"] == "mcp"}
        try:
            found = await self._client.list_tools(WAIT_SECONDS, labels)
        except ToolError as error:
            raise _unavailable("the tool process is away") from error
        offered: list[dict[str, Any]] = []
        for place, tool in enumerate(tools):
            if tool["type"] == "mcp":
                offered += _functions_of(tool, found, f"settings.tools[{place}]")
            else:
                offered.append(dict(tool))
        _check(offered)
        return offered


def _functions_of(asked: Mapping[str, Any], found: Tools, param: str) -> list[dict[str, Any]]:
    label = asked["server_label"]
    if label not in found.servers:
        message = f"no server of tools is called {label}"
        raise ApiError("tool_not_found", message, param=f"{param}.server_label")
    theirs = [tool for tool in found.tools if tool.server == label]
    trouble = next((it for it in found.troubles if it.server == label), None)
    if not theirs and trouble is not None:
        raise _unavailable(f"the server {label} is not up: {trouble.message}", param)
    names = asked.get("allowed_tools")
    if names is None:
        return [_function(tool) for tool in theirs]
    missing = set(names) - {name for tool in theirs for name in (tool.name, tool.title)}
    if missing:
        message = f"the server {label} has no tool {min(missing)[:64]}"
        raise ApiError("tool_not_found", message, param=f"{param}.allowed_tools")
    return [_function(tool) for tool in theirs if tool.name in names or tool.title in names]


def _function(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "server_label": tool.server,
        "consent": tool.consent,
        "max_calls": tool.max_calls_per_answer,
    }


def _check(offered: Sequence[Mapping[str, Any]]) -> None:
    if len({tool["name"] for tool in offered}) < len(offered):
        raise invalid_field("settings.tools", "two tools have the same name")
    num_bytes = len(orjson.dumps(offered))
    if len(offered) > MAX_OFFERED or num_bytes > MAX_OFFERED_BYTES:
        message = (
            f"{len(offered)} tools of {num_bytes} bytes are offered; at most {MAX_OFFERED}, and "
            f"{MAX_OFFERED_BYTES} bytes: name fewer as allowed_tools"
        )
        raise ApiError("tools_too_large", message, param="settings.tools")


def _unavailable(message: str, param: str | None = None) -> ApiError:
    return ApiError("tool_server_unavailable", message, param=param)
