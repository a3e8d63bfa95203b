"""The queue of a session over HTTP: what its user wants to ask next."""

from typing import Any

from starlette.responses import Response

from server.api.rest.operation import (
    IDEMPOTENCY_KEY,
    Access,
    ApiContext,
    Call,
    Operation,
    body_of,
    json_response,
)
from server.protocol.client_frames import (
    AddToQueue,
    QueueFrame,
    SteerResponse,
    UpdateQueue,
    convert,
)
from server.protocol.encoding import ServerFrame
from server.protocol.objects import QueueObject
from server.protocol.server_frames import QueueAccepted, SteerAccepted
from sessions.model.ids import check_response_id, check_session_id


class QueueOperations:
    """The endpoints for queues."""

    def __init__(self, context: ApiContext) -> None:
        self._store = context.services.store
        self._changes = context.services.queue_changes

    def operations(self) -> list[Operation]:
        path = "/v1/sessions/{session_id}/queue"
        return [
            Operation(
                method="GET",
                path=path,
                access=Access.USER,
                endpoint=self.read,
                summary="What waits to be asked, in order and with whole texts",
                answers={200: QueueObject},
            ),
            Operation(
                method="POST",
                path=path,
                access=Access.USER,
                endpoint=self.add,
                summary="Ask something as soon as its turn comes",
                headers=(IDEMPOTENCY_KEY,),
                body=body_of(AddToQueue, "session_id", "idempotency_key"),
                answers={202: QueueAccepted},
            ),
            Operation(
                method="POST",
                path=f"{path}/send",
                access=Access.USER,
                endpoint=self.resume,
                summary="Let a queue that is paused go on",
                answers={202: QueueAccepted},
            ),
            Operation(
                method="PATCH",
                path=f"{path}/{{item_id}}",
                access=Access.USER,
                endpoint=self.update,
                summary="Change the text, the settings or the place of what waits",
                body=body_of(UpdateQueue, "session_id", "item_id"),
                answers={200: QueueAccepted},
            ),
            Operation(
                method="DELETE",
                path=f"{path}/{{item_id}}",
                access=Access.USER,
                endpoint=self.remove,
                summary="Withdraw what waits",
                answers={200: QueueAccepted},
            ),
            Operation(
                method="POST",
                path=f"{path}/{{item_id}}/send",
                access=Access.USER,
                endpoint=self.send,
                summary="Ask it now, in place of the answer that is being written",
                answers={202: QueueAccepted},
            ),
            Operation(
                method="POST",
                path="/v1/responses/{response_id}/steer",
                access=Access.USER,
                endpoint=self.steer,
                summary="End an answer, keep its text, and go on with more words",
                headers=(IDEMPOTENCY_KEY,),
                body=body_of(SteerResponse, "previous_response_id", "idempotency_key"),
                answers={202: SteerAccepted},
            ),
        ]

    async def read(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        queue = await self._store.queues.get(call.uid, session_id)
        return json_response(queue.wire())

    async def add(self, call: Call) -> Response:
        body = {**await call.body(), "idempotency_key": call.header("Idempotency-Key")}
        return await self._change(call, "queue.add", 202, body)

    async def resume(self, call: Call) -> Response:
        return await self._change(call, "queue.send", 202)

    async def update(self, call: Call) -> Response:
        return await self._change(call, "queue.update", 200, await call.body())

    async def remove(self, call: Call) -> Response:
        return await self._change(call, "queue.remove", 200)

    async def send(self, call: Call) -> Response:
        return await self._change(call, "queue.send", 202)

    async def steer(self, call: Call) -> Response:
        response_id = call.path("response_id")
        check_response_id(response_id)
        body = {
            **await call.body(),
            "idempotency_key": call.header("Idempotency-Key"),
            "previous_response_id": response_id,
        }
        return await self._answer(call, convert({**body, "type": "response.steer"}), 202)

    async def _change(
        self, call: Call, kind: str, status: int, body: dict[str, Any] | None = None
    ) -> Response:
        """The frame of that kind, with what the path says."""
        session_id = call.path("session_id")
        check_session_id(session_id)
        frame = {**(body or {}), "type": kind, "session_id": session_id}
        if "item_id" in call.request.path_params:
            frame["item_id"] = call.path("item_id")
        return await self._answer(call, convert(frame), status)

    async def _answer(self, call: Call, frame: object, status: int) -> Response:
        assert isinstance(frame, QueueFrame)
        reply: ServerFrame = await self._changes.change(call.uid, frame)
        return json_response(reply.wire(), status)
