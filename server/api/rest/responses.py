"""Responses over HTTP: begin, read, follow and stop them; the same frames as on the websocket."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from server.access.auth import address_of
from server.api.rest.event_stream import EventStream, HttpViewer, head_of, parse_event_id
from server.api.rest.operation import (
    IDEMPOTENCY_KEY,
    Access,
    ApiContext,
    Call,
    Operation,
    body_of,
    json_response,
)
from server.commands.cancel_response import Canceller
from server.commands.fence import fence_of
from server.live.response_log import read_log, response_frame
from server.live.subscription import Subscription
from server.protocol.client_frames import MAX_INTEGER, CancelResponse, CreateResponse, convert
from server.protocol.entries import is_final
from server.protocol.errors import ApiError, invalid_field
from server.protocol.objects import ResponseObject
from server.protocol.store_errors import translate_store_errors
from sessions.background import start
from sessions.model.errors import ResponseNotFound, StoreUnavailable
from sessions.model.events import ObjectEvent
from sessions.model.ids import check_response_id, check_session_id, session_of

CANCEL_SECONDS = 5.0  # then 202: the owner has not said yet that the answer has ended
RETRY_MS = 5000  # for one who has too many streams open


class FollowQuery(Struct, frozen=True):
    """`stream` follows the response; `starting_after` is the last number that the caller has."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None


class ResponseOperations:
    """The endpoints for responses."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._services = context.services
        self._store = context.services.store
        self._hub = context.services.hub
        self._runs = context.services.runs

    def operations(self) -> list[Operation]:
        """`read` and `cancel` are at addresses that responses of other doors have, too."""
        return [
            Operation(
                method="POST",
                path="/v1/sessions/{session_id}/responses",
                access=Access.USER,
                endpoint=self.create,
                summary="Begin a response; with `Accept: text/event-stream`, follow it",
                headers=(IDEMPOTENCY_KEY,),
                body=body_of(CreateResponse, "session_id", "idempotency_key"),
                answers={200: "text/event-stream", 202: ResponseObject},
            ),
        ]

    # ---- begin ----------------------------------------------------------------------------------

    async def create(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        frame = convert(
            {
                **await call.body(),
                "type": "response.create",
                "session_id": session_id,
                "idempotency_key": call.header("Idempotency-Key"),
            }
        )
        assert isinstance(frame, CreateResponse)
        if frame.priority and not call.user.is_admin:
            raise ApiError("forbidden", "priority needs the role admin", param="priority")
        await self._store.sessions.get(call.uid, session_id)
        if not _wants_events(call.request):
            viewer = HttpViewer(call.uid)
            asker = Subscription(viewer, session_id, only=set())
            response_id, _ = await self._services.creator.create(
                call.uid, frame, asker, call.request
            )
            return json_response(
                await self._current(call.uid, response_id),
                202,
                headers={"Location": f"/v1/responses/{response_id}"},
            )
        return await self._follow(call, session_id, partial(self._begin, call, frame))

    async def _begin(self, call: Call, frame: CreateResponse, asker: Subscription) -> None:
        """Begin a response that `asker` then watches, or replay it as far as it got."""
        uid = call.uid
        asker.end_join(0)  # there is nothing of the session itself to wait for
        response_id, replayed = await self._services.creator.create(uid, frame, asker, call.request)
        if not replayed:
            return
        asker.begin_join()
        run = self._runs.local(response_id)
        log = run.log if run is not None else await read_log(self._store, uid, response_id)
        created = log.events[0] if log.events else None
        if not isinstance(created, ObjectEvent):
            raise ResponseNotFound
        asker.outbox.put(response_frame(1, log.fence, created, replayed=True), response_id)
        await self._attach(asker, response_id, 1)

    # ---- read and follow ------------------------------------------------------------------------

    async def read(self, call: Call) -> Response:
        response_id = call.path("response_id")
        check_response_id(response_id)
        if not call.query.stream:
            return json_response(await self._current(call.uid, response_id))
        fence = await fence_of(self._services, call.uid, response_id)
        after = self._position(call, fence)
        if after and await self._has_end(call.uid, response_id, after):
            return Response(status_code=204, headers={"Cache-Control": "no-store"})

        async def attach(subscription: Subscription) -> None:
            await self._attach(subscription, response_id, after, fence)

        return await self._follow(call, session_of(response_id), attach)

    def _position(self, call: Call, fence: int) -> int:
        """What the caller has: of another fence it counts for nothing."""
        last = call.header("Last-Event-ID")
        if last is None:
            return call.query.starting_after or 0
        try:
            last_fence, number = parse_event_id(last)
        except ValueError as error:
            raise invalid_field("Last-Event-ID", str(error)) from None
        return number if last_fence == fence else 0

    async def _has_end(self, uid: str, response_id: str, after: int) -> bool:
        """Whether `after` is the end: an `EventSource` asks for more until it gets 204."""
        run = self._runs.local(response_id)
        if run is not None and run.uid == uid:
            log = run.log
        else:
            log = await read_log(self._store, uid, response_id)
        return log.has_ended and is_final(log.end.data) and after == len(log.events)

    async def _current(self, uid: str, response_id: str) -> dict[str, Any]:
        """The `response` object as it is now."""
        run = self._runs.local(response_id)
        if run is not None and run.uid == uid:
            last = run.events[-1]
            if isinstance(last, ObjectEvent) and last.data["type"] == "response.done":
                return dict(last.data["response"])
            return {**run.response, "status": run.status}
        record = await self._store.runs.get(uid, response_id)
        number = 1 if record.is_live else record.sequence_number
        for place, event in await self._store.runs.events(response_id, after=number - 1):
            if place == number and isinstance(event, ObjectEvent):
                return {**event.data["response"], "status": record.status}
        raise ResponseNotFound

    async def _follow(
        self, call: Call, session_id: str, begin: Callable[[Subscription], Awaitable[None]]
    ) -> Response:
        """Join the session's room, let `begin` choose the response, and stream its frames."""
        address = address_of(call.request)
        connections = self._services.connections
        if not connections.enter(call.uid, address):
            raise ApiError("rate_limited", "too many connections are open", retry_after_ms=RETRY_MS)
        viewer = HttpViewer(call.uid)
        subscription = Subscription(viewer, session_id, only=set())
        async with contextlib.AsyncExitStack() as stack:
            # Left last: this may wait for Redis, and the others need not wait for it.
            stack.push_async_callback(self._leave, subscription)
            stack.callback(connections.leave, call.uid, address)
            self._context.streams.add(viewer)
            stack.callback(self._context.streams.discard, viewer)
            holding = self._services.identities.holding(call.user, viewer.put_error)
            stack.enter_context(holding)
            await self._hub.join(subscription)
            await begin(subscription)
            # Begun: the sender of the stream leaves at its end.
            leave = stack.pop_all().aclose
        return EventStream(viewer, check=partial(self._check, subscription), leave=leave)

    async def _leave(self, subscription: Subscription) -> None:
        """Leave the session's room, even if the caller is cancelled meanwhile."""
        await asyncio.shield(start(self._hub.leave(subscription)))

    async def _check(self, subscription: Subscription) -> None:
        """The response may be gone together with its session."""
        assert subscription.only is not None
        with translate_store_errors(), contextlib.suppress(StoreUnavailable):
            if not subscription.only:  # its end, if there was one, is on its way already
                raise ResponseNotFound
            for response_id in list(subscription.only):  # its end may come meanwhile
                await fence_of(self._services, subscription.watcher.uid, response_id)

    async def _attach(
        self, subscription: Subscription, response_id: str, after: int, fence: int | None = None
    ) -> None:
        """Send what the caller has not seen, and then what comes."""
        assert subscription.only is not None
        subscription.only.add(response_id)
        await self._hub.catch_up.attach(subscription, response_id, after, fence)
        subscription.end_join(0)
        self._hub.catch_up.fill_gap(subscription, response_id)

    # ---- stop -----------------------------------------------------------------------------------

    async def cancel(self, call: Call) -> Response:
        """The stop of a websocket, by one who has no other."""
        response_id = call.path("response_id")
        check_response_id(response_id)
        frame = convert({**await call.body(), "type": "stop", "response_id": response_id})
        assert isinstance(frame, CancelResponse)
        viewer = HttpViewer(call.uid)
        canceller = Canceller(viewer, self._services, {})
        try:
            asked = viewer.sent_ends.ask()
            canceller.close_gates(frame, asked)
            await canceller.cancel(frame, asked)
            return await self._await_end(viewer)
        finally:
            canceller.close()

    async def _await_end(self, viewer: HttpViewer) -> Response:
        notice: bytes | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CANCEL_SECONDS
        while (frame := await viewer.next_frame(deadline - loop.time())) is not None:
            head = head_of(frame)
            if viewer.refusal is not None and head.type == "error":
                raise viewer.refusal
            if head.is_done:
                if head.durable:  # 200 promises that
                    return json_response(orjson.Fragment(frame))
                if head.is_final:  # it never will be
                    break
                continue
            notice = frame
            if head.owner == "silent":
                break
        if notice is None:
            raise ApiError("store_unavailable", "the stop could not be stored yet; ask again")
        return json_response(orjson.Fragment(notice), 202)


def _wants_events(request: Request) -> bool:
    accepted = ",".join(request.headers.getlist("accept"))
    return any(
        kind.partition(";")[0].strip().lower() == "text/event-stream"
        for kind in accepted.split(",")
    )
