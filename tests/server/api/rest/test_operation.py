"""Operations: who is let in, what is read of a request, and which methods a path knows."""

import json
from collections.abc import Callable
from typing import Annotated, Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.testclient import TestClient

from server.access.identities import User
from server.access.rates import TokenBuckets
from server.api.rest.operation import (
    Access,
    ApiContext,
    Call,
    Operation,
    body_of,
    json_response,
    routes_of,
)
from server.protocol.client_frames import CreateResponse, CreateSession
from server.protocol.errors import ApiError

ALICE = User("alice", "Alice")


class Query(Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    name: str | None = None
    flag: bool | None = None


async def echo(call: Call) -> Response:
    query = None if call.query is None else [call.query.limit, call.query.name, call.query.flag]
    body = await call.body() if call.request.method == "POST" else None
    return json_response({"uid": call.uid, "query": query, "body": body})


def operation(method: str = "GET", path: str = "/x", **changed: Any) -> Operation:
    fields = {"access": Access.USER, "endpoint": echo, "summary": "", **changed}
    return Operation(method=method, path=path, **fields)


@pytest.fixture
def context() -> Any:
    context: Any = ApiContext(*(MagicMock() for _ in ApiContext._fields))._replace(
        rates=TokenBuckets(0)
    )
    context.authenticator.user = AsyncMock(return_value=ALICE)
    context.authenticator.renamed_cookie = MagicMock(return_value=[])
    context.authenticator.admin = AsyncMock(side_effect=ApiError("forbidden", "no"))
    context.services.identities.confirm = AsyncMock()
    return context


@pytest.fixture
def serve(context: Any) -> Callable[..., TestClient]:
    return lambda *operations: TestClient(Starlette(routes=routes_of(operations, context)))


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, json.loads(answer.content)["error"]["code"]


def test_nobody_is_asked_who_they_are_at_a_public_path(
    context: Any, serve: Callable[..., TestClient]
) -> None:
    answer = serve(operation(access=Access.PUBLIC)).get("/x")
    assert answer.json()["uid"] == "" and "x-ratelimit-limit-requests" not in answer.headers
    context.authenticator.user.assert_not_called()


def test_an_admins_path_asks_for_the_scope_that_it_declares(
    context: Any, serve: Callable[..., TestClient]
) -> None:
    answer = serve(operation(access=Access.ADMIN, scope="admin:transcripts")).get("/x")
    assert code(answer) == (403, "forbidden")
    asked = context.authenticator.admin.await_args
    assert asked.args[1] == "admin:transcripts"


def test_a_path_tells_its_methods(serve: Callable[..., TestClient]) -> None:
    client = serve(operation("GET"), operation("POST"), operation("DELETE", "/x/{id}"))
    answer = client.put("/x")
    assert code(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert client.head("/x").status_code == 200 and client.head("/x").content == b""


def test_a_literal_path_comes_before_one_with_a_parameter(
    serve: Callable[..., TestClient],
) -> None:
    client = serve(operation("GET", "/x/{id}"), operation("POST", "/x/import"))
    assert client.get("/x/import").status_code == 405
    assert client.get("/x/other").status_code == 200


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("", [50, None, None]),
        ("limit=7&name=a%20b&flag=true", [7, "a b", True]),
        ("other=1&other=2&limit=1", [1, None, None]),
        ("name=", [50, "", None]),
        ("name=1.0", [50, "1.0", None]),
    ],
)
def test_a_query_is_read_as_declared(
    serve: Callable[..., TestClient], query: str, values: list[Any]
) -> None:
    assert serve(operation(query=Query)).get(f"/x?{query}").json()["query"] == values


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *((f"limit={value}", "limit") for value in ("0", "201", "1.0", "1e1", "", "x", "-1", "٣")),
        ("limit=1&limit=1", "limit"),
        ("name=" + "x" * 1025, "name"),
        ("flag=perhaps", "flag"),
    ],
)
def test_a_query_out_of_range_is_refused(
    serve: Callable[..., TestClient], query: str, param: str
) -> None:
    answer = serve(operation(query=Query)).get(f"/x?{query}")
    assert code(answer) == (400, "invalid_field")
    assert answer.json()["error"]["param"] == param


def test_a_body_is_json_in_plain_utf8(serve: Callable[..., TestClient]) -> None:
    client = serve(operation("POST"))
    plain = {"Content-Type": "application/json"}
    assert client.post("/x").json()["body"] == {}
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        answer = client.post("/x", content='{"a":1}', headers={"Content-Type": kind})
        assert answer.json()["body"] == {"a": 1}
    for content in (b"[]", b"{", b"\xff", b'{"a":NaN}'):
        assert code(client.post("/x", content=content, headers=plain)) == (400, "invalid_json")
    for headers in ({"Content-Type": "text/plain"}, {**plain, "Content-Encoding": "gzip"}):
        answer = client.post("/x", content=b"{}", headers=headers)
        assert code(answer) == (415, "unsupported_media_type")


def test_after_its_body_a_request_is_let_in_again(
    context: Any, serve: Callable[..., TestClient]
) -> None:
    done = []

    async def note(call: Call) -> Response:
        done.append(await call.body())
        return json_response({})

    client = serve(operation("POST", endpoint=note))
    refusal = ApiError("token_invalid", "the user's rights have changed")
    context.services.identities.confirm = AsyncMock(side_effect=refusal)
    assert code(client.post("/x", json={"a": 1})) == (401, "token_invalid")
    context.services.identities.confirm.assert_awaited_once_with(ALICE)
    assert done == []


def test_requests_of_a_user_have_a_rate(context: Any, serve: Callable[..., TestClient]) -> None:
    context.rates.rate = 1
    client = serve(operation())
    answers = [client.get("/x") for _ in range(3)]  # a burst of two
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert code(answers[2]) == (429, "rate_limited")
    assert answers[2].headers["retry-after"] == "1"
    told = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert told == ["1", "0", "0"] and answers[0].headers["x-ratelimit-limit-requests"] == "2"
    context.authenticator.user = AsyncMock(return_value=User("bob", "Bob"))
    assert client.get("/x").status_code == 200


def test_a_body_has_the_fields_of_its_frame_but_those_given_elsewhere() -> None:
    session = body_of(CreateSession, "idempotency_key")
    assert session.__struct_fields__ == ("title", "settings")
    response = body_of(CreateResponse, "session_id", "idempotency_key")
    assert not {"session_id", "idempotency_key", "event_id"} & set(response.__struct_fields__)
    assert "on_busy" in response.__struct_fields__
