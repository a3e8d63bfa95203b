"""Over HTTP: the tools that the server runs, and a user's word on a call that waits for it."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from server.api.rest.operation import (
    Access,
    ApiContext,
    Call,
    Operation,
    body_of,
    json_response,
)
from server.commands.tools.consents import consent_to_call
from server.protocol.client_frames import ConsentToCall, convert
from server.protocol.objects import Consent
from server.protocol.server_frames import ConsentAccepted


class RunTool(Struct, frozen=True, kw_only=True):
    """A tool that the server runs. Description and parameters are its server's words."""

    name: str
    title: str
    description: str
    parameters: dict[str, Any]
    consent: Consent
    max_calls_per_answer: int
    read_only: bool


class ToolServer(Struct, frozen=True, kw_only=True):
    """With `message`, why it is not up, or which of its tools are left out."""

    server_label: str
    status: Literal["ready", "unavailable"]
    message: str | UnsetType = UNSET
    tools: list[RunTool]


class ToolServers(Struct, frozen=True, kw_only=True):
    """Empty where the operator has configured none."""

    servers: list[ToolServer]


class ToolOperations:
    """The endpoints for tools."""

    def __init__(self, context: ApiContext) -> None:
        self._services = context.services
        self._offers = context.services.tools

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/tools",
                access=Access.USER,
                endpoint=self.listing,
                summary="The tools that this server runs, and whether a call is asked for",
                answers={200: ToolServers},
            ),
            Operation(
                method="POST",
                path="/v1/responses/{response_id}/consent",
                access=Access.USER,
                endpoint=self.consent,
                summary="Say whether a call that waits for it may run",
                body=body_of(ConsentToCall, "response_id"),
                answers={200: ConsentAccepted},
            ),
        ]

    async def listing(self, call: Call) -> Response:
        servers: list[ToolServer] = []
        if self._offers is not None:
            found = await self._offers.listing()
            troubles = {trouble.server: trouble for trouble in found.troubles}
            for label in found.servers:
                tools = [tool for tool in found.tools if tool.server == label]
                trouble = troubles.get(label)
                is_up = bool(tools) or trouble is None
                servers.append(
                    ToolServer(
                        server_label=label,
                        status="ready" if is_up else "unavailable",
                        message=UNSET if trouble is None else trouble.message,
                        tools=[
                            RunTool(
                                name=tool.name,
                                title=tool.title,
                                description=tool.description,
                                parameters=tool.input_schema,
                                consent=_consent(tool.consent),
                                max_calls_per_answer=tool.max_calls_per_answer,
                                read_only=tool.is_read_only,
                            )
                            for tool in tools
                        ],
                    )
                )
        return json_response(msgspec.to_builtins(ToolServers(servers=servers)))

    async def consent(self, call: Call) -> Response:
        body = await call.body()
        frame = convert(
            {**body, "type": "tool_call.consent", "response_id": call.path("response_id")}
        )
        assert isinstance(frame, ConsentToCall)
        return json_response((await consent_to_call(self._services, call.uid, frame)).wire())


def _consent(policy: str) -> Consent:
    """What is not known here asks most."""
    return "once" if policy == "once" else "never" if policy == "never" else "always"
