"""`Connection` without a network: how each thing that can go wrong closes the socket."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from server.access.identities import User, UserDisabled
from server.api.websocket import connection as module
from server.api.websocket import wire
from server.api.websocket.connection import Connection
from server.commands.services import Services
from server.config.limits import Limits
from server.protocol.client_frames import ClientFrame
from server.protocol.errors import ApiError
from server.telemetry.metrics import Metrics
from sessions.model.errors import StoreUnavailable
from tests.helpers.patience import PATIENCE

Handle = Callable[[ClientFrame], Any]


class Socket:
    """Stands for Starlette's, and for our protocol class: the test feeds it, and reads it."""

    client = None

    def __init__(self) -> None:
        self.closed: tuple[int, str] | None = None
        self.aborted = False
        self.is_jammed = False
        self.unsent: list[int] = []  # bytes at each look; the last one stays
        self.closed_with: int | None = None
        self.on_room: Callable[[], None] | None = None
        self.transport = self
        self.scope = {"headers": [], "extensions": {"parley.transport": self}}
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def feed(self, text: str) -> None:
        self._incoming.put_nowait({"type": "websocket.receive", "text": text})

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def receive(self) -> dict[str, Any]:
        return await self._incoming.get()

    def wake(self) -> None:
        self._incoming.put_nowait({"type": "parley.wake"})

    def write_frame(self, payload: bytes) -> bool:
        if not self.is_jammed:
            self._sent.put_nowait(json.loads(payload))
        return not self.is_jammed

    async def next(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while (frame := await self._sent.get())["type"] != kind:
                pass
            return frame

    async def send(self, message: dict[str, Any]) -> None:
        assert message["type"] == "websocket.close"
        if self.is_jammed:
            await asyncio.Event().wait()
        self.closed = (message["code"], message["reason"])

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        if len(self.unsent) > 1:
            return self.unsent.pop(0)
        return self.unsent[0] if self.unsent else 0


class Hub:
    def __init__(self) -> None:
        self.watchers: set[object] = set()
        self.error: Exception | None = None

    async def add_watcher(self, watcher: object) -> None:
        if self.error is not None:
            raise self.error
        self.watchers.add(watcher)

    async def remove_watcher(self, watcher: object) -> None:
        self.watchers.discard(watcher)


class Handlers:
    """Does what the test says with each frame."""

    handle_one: Handle
    stopped: list[ClientFrame]

    def __init__(self, *_: object) -> None:
        self.canceller = SimpleNamespace(
            close_gates=lambda frame, asked: self.stopped.append(frame)
        )

    async def handle(self, frame: ClientFrame, asked: int) -> None:
        if (waiting := type(self).handle_one(frame)) is not None:
            await waiting

    async def leave_all(self) -> None:
        pass


class Fixture:
    """A connection being served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limits: Limits | None = None) -> None:
        self.socket = Socket()
        self.hub = Hub()
        self.handled: list[ClientFrame] = []
        self.has_rights = True
        self.on_frame: Handle = self.handled.append
        self.stopped: list[ClientFrame] = []
        monkeypatch.setattr(module, "Handlers", Handlers)
        monkeypatch.setattr(Handlers, "stopped", self.stopped, raising=False)
        monkeypatch.setattr(
            Handlers, "handle_one", staticmethod(lambda frame: self.on_frame(frame)), raising=False
        )
        services = SimpleNamespace(
            hub=self.hub,
            limits=limits or Limits(messages_per_s=0),
            metrics=Metrics(),
            replica="w1",
            version="0",
            health=SimpleNamespace(degraded={}),
            notices=SimpleNamespace(frame=None),
            identities=SimpleNamespace(still_holds=self.still_holds),
        )
        socket = cast("WebSocket", self.socket)
        user = User("alice", "alice")
        self.connection = Connection(socket, user, cast("Services", services))

    async def still_holds(self, user: User) -> bool:
        return self.has_rights

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.connection.serve())

    async def ended(self, serving: asyncio.Task[None]) -> tuple[int, str] | None:
        async with asyncio.timeout(PATIENCE):
            await serving
        assert not self.hub.watchers
        return self.socket.closed


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Fixture:
    return Fixture(monkeypatch)


CREATE = '{"type":"session.create","idempotency_key":"k","event_id":"e1"}'


async def test_the_first_frame_tells_who_and_where(served: Fixture) -> None:
    serving = served.start()
    ready = await served.socket.next("connection.ready")
    assert ready["user"] == {"id": "alice", "name": "alice", "roles": ["user"]}
    assert ready["protocol"] == "chat.v1"
    served.socket.disconnect()
    assert await served.ended(serving) is None  # the client closed it already


async def test_a_client_that_says_nothing_is_closed_with_4408(
    served: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_FRAME_SECONDS", 0.01)
    assert await served.ended(served.start()) == (4408, "no_first_frame")


async def test_a_frame_that_fails_is_an_internal_error_and_the_connection_goes_on(
    served: Fixture,
) -> None:
    def fail(frame: ClientFrame) -> None:
        served.on_frame = served.handled.append
        raise KeyError("a secret")

    served.on_frame = fail
    serving = served.start()
    served.socket.feed(CREATE)
    error = (await served.socket.next("error"))["error"]
    assert (error["code"], error["event_id"]) == ("internal", "e1")
    assert "secret" not in json.dumps(error)
    served.socket.feed(CREATE)
    served.socket.feed('{"type":"ping","t":1}')
    assert (await served.socket.next("pong"))["t"] == 1
    served.socket.disconnect()
    await served.ended(serving)
    assert len(served.handled) == 1


async def test_a_failure_outside_of_a_frame_closes_with_1011(
    served: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> ClientFrame:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "parse", fail)
    serving = served.start()
    served.socket.feed(CREATE)
    closed = await served.ended(serving)
    assert closed is not None
    assert closed[0] == 1011


async def test_without_a_store_the_client_hears_when_to_come_back(served: Fixture) -> None:
    served.hub.error = StoreUnavailable()
    closed = await served.ended(served.start())
    assert closed is not None
    assert (closed[0], closed[1].partition(";")[0]) == (1013, "store_unavailable")


async def test_a_socket_that_takes_nothing_is_given_up_and_cut(
    served: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.01)
    monkeypatch.setattr(wire, "ABORT_AFTER_CLOSE_SECONDS", 0.01)
    served.socket.is_jammed = True
    assert await served.ended(served.start()) is None
    assert served.socket.aborted


async def test_a_socket_that_still_takes_something_is_waited_for(
    served: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.01)
    monkeypatch.setattr(wire, "ABORT_AFTER_CLOSE_SECONDS", 0.01)
    served.socket.is_jammed = True
    served.socket.unsent = [500, 400, 300, 300]
    assert await served.ended(served.start()) is None
    assert served.socket.unsent == [300]  # it was looked at until nothing more had left


async def test_an_outbox_that_runs_over_closes_with_4008(served: Fixture) -> None:
    serving = served.start()
    await served.socket.next("connection.ready")
    served.socket.feed('{"type":"ping"}')
    await served.socket.next("pong")
    served.connection.outbox.put({"type": "huge", "text": "x" * 2**20})
    assert await served.ended(serving) == (4008, "slow_consumer")
    assert not served.socket.aborted


async def test_a_worker_that_restarts_says_so_first(served: Fixture) -> None:
    serving = served.start()
    served.connection.close_soon()
    draining = await served.socket.next("connection.draining")
    assert draining["reconnect_after_ms"] > 0
    assert await served.ended(serving) == (1012, "restart")


async def test_too_many_messages_are_refused_and_then_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Fixture(monkeypatch, Limits(messages_per_s=1))
    serving = served.start()
    for number in range(4):
        served.socket.feed(f'{{"type":"ping","t":{number}}}')
    assert (await served.socket.next("pong"))["t"] == 0
    (left,) = (await served.socket.next("rate_limits.updated"))["rate_limits"]
    assert (left["name"], left["limit"], left["remaining"]) == ("messages", 2, 0)
    assert 0 < left["reset_seconds"] <= 2
    error = (await served.socket.next("error"))["error"]
    assert error["code"] == "rate_limited"
    assert 0 < error["retry_after_ms"] <= 1001
    for _ in range(wire.MAX_STRIKES):
        served.socket.feed('{"type":"ping"}')
    closed = await served.ended(serving)
    assert closed is not None
    assert closed[0] == 4429
    assert "retry_after_ms=" in closed[1]


async def test_three_frames_that_are_no_json_close_with_4400(served: Fixture) -> None:
    serving = served.start()
    for _ in range(wire.MAX_BAD_FRAMES):
        served.socket.feed("{")
    closed = await served.ended(serving)
    assert closed is not None
    assert closed[0] == 4400


async def test_bad_frames_of_long_ago_are_forgiven(
    served: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BAD_FRAMES_WINDOW_SECONDS", 0.0)
    serving = served.start()
    for _ in range(3 * wire.MAX_BAD_FRAMES):
        served.socket.feed("{")
        await served.socket.next("error")
    served.socket.feed('{"type":"ping","t":2}')
    assert (await served.socket.next("pong"))["t"] == 2
    served.socket.disconnect()
    await served.ended(serving)


async def test_a_user_without_rights_any_more_is_closed_4401(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = Fixture(monkeypatch)
    serving = fixture.start()
    fixture.connection.refuse(ApiError("token_expired", "it is over"))
    fixture.connection.refuse(ApiError("token_invalid", "too late"))
    assert await fixture.ended(serving) == (4401, "token_expired")


async def test_a_user_who_may_not_be_here_is_closed_4403(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = Fixture(monkeypatch)
    serving = fixture.start()
    fixture.connection.refuse(UserDisabled())
    assert await fixture.ended(serving) == (4403, "forbidden")


async def test_a_bug_that_comes_back_closes_with_4500(served: Fixture) -> None:
    def fail(frame: ClientFrame) -> None:
        raise KeyError

    served.on_frame = fail
    serving = served.start()
    for _ in range(module.MAX_FAILURES):
        served.socket.feed(CREATE)
        assert (await served.socket.next("error"))["error"]["code"] == "internal"
    assert await served.ended(serving) == (4500, "internal")


@pytest.mark.row("P8")
async def test_no_frame_is_handled_for_a_user_without_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = Fixture(monkeypatch)
    fixture.has_rights = False
    serving = fixture.start()
    fixture.socket.feed('{"type":"session.unsubscribe","session_id":"ses_x"}')
    fixture.socket.feed('{"type":"ping","t":1}')
    await fixture.socket.next("pong")
    fixture.socket.disconnect()
    await fixture.ended(serving)
    assert fixture.handled == []


async def test_a_reader_whose_queue_is_full_refuses_frames_and_hears_stops_and_pings(
    served: Fixture,
) -> None:
    goes_on = asyncio.Event()

    async def handle(frame: ClientFrame) -> None:
        served.handled.append(frame)
        await goes_on.wait()

    served.on_frame = handle
    serving = served.start()
    served.socket.feed(CREATE)
    served.socket.feed('{"type":"ping"}')
    await served.socket.next("pong")  # by now the worker is at the first frame
    for number in range(module.MAX_QUEUED_FRAMES + 1):
        served.socket.feed(
            f'{{"type":"session.unsubscribe","session_id":"s","event_id":"{number}"}}'
        )
    refused = (await served.socket.next("error"))["error"]
    assert (refused["code"], refused["event_id"]) == ("rate_limited", str(module.MAX_QUEUED_FRAMES))
    assert refused["retry_after_ms"] == module.QUEUE_RETRY_MS
    served.socket.feed('{"type":"stop","response_id":"resp_x"}')
    served.socket.feed('{"type":"ping","t":1}')
    assert (await served.socket.next("pong"))["t"] == 1
    assert [type(frame).__name__ for frame in served.stopped] == ["CancelResponse"]
    goes_on.set()
    served.socket.feed('{"type":"ping","t":2}')
    await served.socket.next("pong")
    assert len(served.handled) == 1 + module.MAX_QUEUED_FRAMES + 1  # the stop after them all
    assert served.handled[-1] is served.stopped[0]
    served.socket.disconnect()
    await served.ended(serving)


async def test_even_stops_wait_in_a_bounded_queue(served: Fixture) -> None:
    served.on_frame = lambda frame: asyncio.Event().wait()
    serving = served.start()
    most = 1 + module.MAX_QUEUED_FRAMES + module.MAX_QUEUED_STOPS
    for number in range(most + 1):
        served.socket.feed(f'{{"type":"stop","response_id":"resp_x","event_id":"{number}"}}')
    error = (await served.socket.next("error"))["error"]
    assert (error["code"], error["event_id"]) == ("rate_limited", str(most))
    assert len(served.stopped) == most
    served.socket.disconnect()
    await served.ended(serving)
