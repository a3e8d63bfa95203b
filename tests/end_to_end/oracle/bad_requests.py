"""What must not be sent over HTTP, row by row, and its answers: data for `test_bad_requests.py`.

`$session` is a session of the sender, `$response` and `$message` are in it.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

SESSIONS = "/v1/sessions"
SESSION = "/v1/sessions/$session"
RESPONSES = "/v1/sessions/$session/responses"
FORK = "/v1/sessions/$session/fork"
IMPORT = "/v1/sessions/import"
CANCEL = "/v1/responses/$response/cancel"
WITH_BODY = (("POST", SESSIONS), ("PATCH", SESSION), ("POST", RESPONSES), ("POST", FORK),
             ("POST", IMPORT), ("POST", CANCEL))  # fmt: skip


class BadRequest(NamedTuple):
    """A request that is refused with one of `statuses`, and `code` where it has a body."""

    row: str
    name: str
    method: str
    path: str
    statuses: tuple[int, ...]
    code: str | None = None
    param: str | None = None
    body: Any = None  # bytes, or what becomes JSON
    headers: Mapping[str, str] = MappingProxyType({})


def _bodies() -> Iterator[BadRequest]:
    """B39: what says that it is something else than JSON in UTF-8, or is."""
    kinds = {
        "text": ("text/plain", b"{}"),
        "a form": ("application/x-www-form-urlencoded", b"title=x"),
        "multipart": ("multipart/form-data; boundary=x", b"--x\r\n\r\n{}\r\n--x--\r\n"),
        "another charset": ("application/json; charset=utf-16", "{}".encode("utf-16")),
        "no type": ("", b"{}"),
    }
    texts = {
        "UTF-16": "{}".encode("utf-16"),
        "latin-1": '{"title":"é"}'.encode("latin-1"),
        "a mark": b"\xef\xbb\xbf{}",
        "half": b"{",
        "two": b"{}{}",
        "NaN": b'{"title":NaN}',
        "deep": b'{"x":' + b"[" * 1000,
        "a surrogate": b'{"title":"\\ud800"}',
        "NUL": b"{}\x00",
    }
    for method, path in WITH_BODY:
        for name, (kind, body) in kinds.items():
            headers = {"Content-Type": kind}
            yield BadRequest(
                "B39", f"{name} to {method} {path}", method, path, (415,),
                "unsupported_media_type", body=body, headers=headers,
            )  # fmt: skip
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        yield BadRequest(
            "B39", f"gzip to {method} {path}", method, path, (415,), "unsupported_media_type",
            body=gzip.compress(b"{}"), headers=headers,
        )  # fmt: skip
        for name, body in texts.items():
            yield BadRequest(
                "B39", f"{name} to {method} {path}", method, path, (400,), None,
                body=body, headers={"Content-Type": "application/json"},
            )  # fmt: skip


def _queries() -> Iterator[BadRequest]:
    """B45 and B47: parameters out of range, broken, or there twice."""
    messages = f"{SESSION}/messages"
    for path in (SESSIONS, messages):
        for value in ("-1", "0", "201", "1000000000", "abc", "", "1.0", "1e1", "9" * 400):
            yield _bad_query("B45", path, "limit", value)
    for value in ("", "x", "1:x", "1:ses_" + "A" * 22, "%00", "é", "A" * 2000, "MTIz"):
        yield _bad_query("B45", SESSIONS, "cursor", value)
    for name, value in (
        *(("pinned", "yes"), ("pinned", ""), ("updated_after", "-1"), ("updated_after", "x")),
        *(("updated_after", str(2**60)), ("q", ""), ("q", "x" * 201)),
    ):
        yield _bad_query("B45", SESSIONS, name, value)
    stream = "/v1/responses/$response"
    for value in ("-1", "x", "1.5", str(2**60), ""):
        yield _bad_query("B45", stream, "starting_after", value)
    yield _bad_query("B45", stream, "stream", "maybe")
    yield _bad_query("B45", f"{SESSION}/export", "format", "pdf")
    for path, twice in ((SESSIONS, "limit=1&limit=2"), (messages, "leaf=a&leaf=b")):
        param = twice.partition("=")[0]
        yield BadRequest("B47", twice, "GET", f"{path}?{twice}", (400,), "invalid_field", param)


def _bad_query(row: str, path: str, name: str, value: str) -> BadRequest:
    query = f"{path}?{name}={value}"
    return BadRequest(row, query[:60], "GET", query, (400,), "invalid_field", name)


def _imports() -> Iterator[BadRequest]:
    """B48: files that break the limits of the live path."""
    question = {"id": "q", "role": "user", "content": [{"type": "text", "text": "x"}]}
    answer = {**question, "id": "a", "role": "assistant", "parent_id": "q"}
    long = {**question, "content": [{"type": "text", "text": "x" * (128 * 1024 + 1)}]}
    files: dict[str, tuple[list[Any], str, tuple[int, ...]]] = {
        "role": ([{**question, "role": "robot"}], "invalid_field", (400,)),
        "orphan": ([{**question, "parent_id": "x"}], "invalid_field", (400,)),
        "itself": ([{**question, "parent_id": "q"}], "invalid_field", (400,)),
        "child first": ([answer, question], "invalid_field", (400,)),
        "twice": ([question, question], "invalid_field", (400,)),
        "running": ([{**question, "status": "in_progress"}], "invalid_field", (400,)),
        "tokens": ([{**question, "usage": {"input_tokens": 2**53}}], "invalid_field", (400,)),
        "long": ([long], "message_too_large", (413,)),
        "too many": (
            [{**question, "id": str(n)} for n in range(20_001)],
            "quota_exceeded",
            (429,),
        ),
    }
    for name, (messages, code, statuses) in files.items():
        body = {"format": "parley.session", "version": 1, "messages": messages}
        yield BadRequest("B48", name, "POST", IMPORT, statuses, code, body=body)
    for name, changed in (("no format", {"version": 1}), ("version", {"version": 2})):
        yield BadRequest("B48", name, "POST", IMPORT, (400,), "invalid_field", body=changed)


def _bad_keys() -> Iterator[BadRequest]:
    """B33, over HTTP: keys and conditions."""
    for path in (SESSIONS, RESPONSES):
        for key in ("", "a b", "x" * 129, "a:b", "é"):
            headers = {"Idempotency-Key": key.encode().decode("latin-1")}
            body = {"input": "hello"}
            yield BadRequest(
                "B33", f"{key[:9]} at {path}", "POST", path, (400,), None,
                body=body, headers=headers,
            )  # fmt: skip
    for key in ("", "a b", "x" * 129):
        headers = {"Idempotency-Key": key}
        body = {"message_id": "msg_" + "A" * 22}
        yield BadRequest(
            "B33", f"fork {key[:9]}", "POST", FORK, (400,), "invalid_field", body=body,
            headers=headers,
        )  # fmt: skip
    for value in ("x", "1", "1.", "-1.2", "1.2.3"):
        path = "/v1/responses/$response?stream=true"
        headers = {"Last-Event-ID": value}
        yield BadRequest(
            "B32", value, "GET", path, (400,), "invalid_field", "Last-Event-ID", headers=headers
        )


REQUESTS = (*_bodies(), *_queries(), *_imports(), *_bad_keys())


def counts() -> Counter[str]:
    """How many inputs each row has."""
    return Counter(request.row for request in REQUESTS)


def encode(body: Any) -> tuple[bytes, dict[str, str]]:
    """The bytes of a body, and the header that goes with them."""
    if body is None or isinstance(body, bytes):
        return body or b"", {}
    return json.dumps(body).encode(), {"Content-Type": "application/json"}
