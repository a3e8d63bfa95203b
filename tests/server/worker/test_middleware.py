"""`Guard`: what is refused before any route, bodies that are bounded, headers on every answer."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from server.worker import middleware as guard_module
from server.worker.middleware import MAX_BODY_BYTES, Guard, security_headers

Message = MutableMapping[str, Any]
IMPORT_MAP = b'{"imports":{}}'
INDEX = b'<script type="importmap">' + IMPORT_MAP + b"</script>"


async def echo_length(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the whole body and says how long it was."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("a secret in /some/path")


class Answer:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.codes: list[str] = []  # that were counted

    async def __call__(self, message: Message) -> None:
        if message["type"].endswith("response.start"):
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message["body"]

    @property
    def code(self) -> str:
        return str(orjson.loads(self.body)["error"]["code"])


async def ask(
    app: ASGIApp, parts: list[bytes] | None = None, kind: str = "http", **changed: Any
) -> Answer:
    """One request with the body in parts; after the last one nothing comes any more."""
    scope = {
        "type": kind,
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "extensions": {"websocket.http.response": {}},
        **changed,
    }
    messages = _body(parts or [b""])

    async def receive() -> Message:
        return await anext(messages)

    answer = Answer()
    count = answer.codes.append
    guard = Guard(app, hosts=["localhost", "[::1]"], index=INDEX, count_error=count)
    await guard(scope, receive, answer)
    return answer


async def _body(parts: list[bytes]) -> AsyncIterator[Message]:
    for place, part in enumerate(parts, 1):
        yield {"type": "http.request", "body": part, "more_body": place < len(parts)}
    await asyncio.Event().wait()


def headers(*pairs: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"localhost"), *pairs]


async def test_a_body_up_to_the_limit_is_read() -> None:
    answer = await ask(echo_length, [b"x" * (MAX_BODY_BYTES - 5), b"x" * 5])
    assert (answer.status, answer.body) == (200, str(MAX_BODY_BYTES).encode())


async def test_a_body_is_counted_as_it_comes() -> None:
    answer = await ask(echo_length, [b"x" * MAX_BODY_BYTES, b"x", b"never read"])
    assert (answer.status, answer.code) == (413, "payload_too_large")
    assert answer.headers[b"connection"] == b"close"


async def test_a_body_that_says_it_is_too_large_is_not_read_at_all() -> None:
    length = str(MAX_BODY_BYTES + 1).encode()
    answer = await ask(echo_length, headers=headers((b"content-length", length)))
    assert (answer.status, answer.code) == (413, "payload_too_large")


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "BODY_SECONDS", 0.01)

    async def wait_for_more(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"] is False
        await receive()  # only a disconnect could come: that may take as long as it wants

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass

    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    answer = Answer()
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers()}
    await Guard(read, hosts=None, index=b"", count_error=answer.codes.append)(scope, silent, answer)
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert answer.codes == ["request_timeout"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ask(wait_for_more)


async def test_an_exception_is_an_answer_without_its_words() -> None:
    with capture_logs() as logs:
        answer = await ask(broken)
    assert (answer.status, answer.code) == (500, "internal")
    assert [(entry["event"], entry["exc_info"]) for entry in logs] == [("request failed", True)]
    assert answer.codes == ["internal"]
    assert b"secret" not in answer.body
    assert b"/some/path" not in answer.body


async def test_who_leaves_in_the_middle_of_a_body_is_no_failure() -> None:
    async def leave() -> Message:
        return {"type": "http.disconnect"}

    answer = Answer()
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers()}
    guard = Guard(echo_length, hosts=None, index=b"", count_error=answer.codes.append)
    with capture_logs() as logs:
        await guard(scope, leave, answer)
    assert (answer.status, answer.codes, logs) == (0, [], [])


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"headers": [(b"host", b"evil.example")]}, 421),
        ({"headers": [(b"host", b"localhost.evil.example")]}, 421),
        ({"headers": []}, 421),
        ({"headers": [(b"host", b"localhost"), (b"host", b"localhost")]}, 421),
        ({"headers": headers((b"x", b"y" * 16_400))}, 431),
        ({"headers": headers(*[(b"x", b"")] * 100)}, 431),
        ({"headers": headers((b"content-length", b"1"), (b"transfer-encoding", b"x"))}, 400),
        ({"path": "http://evil.example/"}, 400),
    ],
)
async def test_a_refusal_comes_before_the_application(
    kind: str, changed: dict[str, Any], status: int
) -> None:
    answer = await ask(broken, kind=kind, **changed)
    assert (answer.status, answer.body) == (status, b"")


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:80", b"[::1]", b"[::1]:8000"])
async def test_our_host_names_pass_with_any_port(host: bytes) -> None:
    assert (await ask(echo_length, headers=[(b"host", host)])).status == 200


async def test_security_headers_are_added_and_none_of_a_route_is_replaced() -> None:
    async def own_policy(scope: Scope, receive: Receive, send: Send) -> None:
        own = {"Content-Security-Policy": "sandbox"}
        await PlainTextResponse("hi", headers=own)(scope, receive, send)

    answer = await ask(own_policy)
    assert answer.headers[b"content-security-policy"] == b"sandbox"
    assert answer.headers[b"x-content-type-options"] == b"nosniff"


async def test_each_answer_of_the_api_has_an_id_and_so_has_the_log_of_one_that_failed() -> None:
    with capture_logs() as logs:
        answers = [await ask(app, path="/v1/x") for app in (echo_length, broken, broken)]
    ids = [answer.headers[b"x-request-id"].decode() for answer in answers]
    assert len(set(ids)) == 3 and all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in ids)
    assert [log["request_id"] for log in logs] == ids[1:]
    assert b"x-request-id" not in (await ask(echo_length, path="/v1")).headers


def test_the_policy_allows_the_import_map_of_the_page_and_no_other_inline_script() -> None:
    policy = dict(security_headers(INDEX))[b"content-security-policy"].decode()
    digest = base64.b64encode(hashlib.sha256(IMPORT_MAP).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_the_policy_allows_no_inline_script_where_the_page_has_no_import_map() -> None:
    policy = dict(security_headers(b"<!doctype html>"))[b"content-security-policy"].decode()
    assert "script-src 'self';" in policy
