"""What the command line says when the server refuses, or does not answer."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.terminal.admin_client import AdminClient, AdminError


@contextmanager
def answering(status: str, body: bytes) -> Iterator[str]:
    """A server that has one answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                length = f"Content-Length: {len(body)}\r\n" if status else ""
                head = f"HTTP/1.1 {status}\r\n{length}\r\n" if status else ""
                connection.sendall(head.encode() + body)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def refusal(body: bytes, status: str = "400 Bad Request") -> AdminError:
    with answering(status, body) as url, pytest.raises(AdminError) as raised:
        AdminClient(url, "token").post("/users")
    return raised.value


def error(message: str, param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "param": param}}).encode()


def test_a_refusal_is_in_the_server_s_words_and_names_the_field() -> None:
    assert str(refusal(error("no such user"))) == "no such user"
    assert str(refusal(error("one of info, warning", "level"))) == "level: one of info, warning"
    assert str(refusal(error("a name is needed", "name"))) == "a name is needed"
    assert refusal(error("no")).status == 400


@pytest.mark.parametrize(
    ("message", "field", "said"),
    [
        ("Expected `int` <= 2592000", "expires_in_s", "at most 30d"),
        ("Expected `int` >= 1", "expires_in_s", "at least 1s"),
        ("Expected `int` <= 9000", "quotas.answers", "at most 9,000"),
        ("Expected `str` of length <= 100", "name", "at most 100 characters"),
    ],
)
def test_how_much_is_allowed_is_said_in_words(message: str, field: str, said: str) -> None:
    assert refusal(error(message, field)).message == said


def test_what_is_no_answer_of_parley_is_named_by_its_status() -> None:
    assert str(refusal(b"<html>", "502 Bad Gateway")) == "the server answered 502"


def test_who_does_not_answer_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(AdminError) as raised:
        AdminClient(url, "token").post("/users")
    assert str(raised.value) == f"{url} does not answer: Connection refused"
    assert raised.value.status is None


def test_what_was_asked_before_the_server_fell_silent_may_have_been_done() -> None:
    assert str(refusal(b"", "")).endswith("; whether it was done is unknown")


@pytest.mark.parametrize("status", [None, 503])  # no answer; or Redis has given none
def test_what_is_done_once_is_asked_again_with_the_same_key_where_it_may_have_been_done(
    status: int | None,
) -> None:
    keys: list[str] = []

    class Lost(AdminClient):
        def _ask(
            self,
            method: str,
            path: str,
            body: dict[str, object] | None = None,
            headers: dict[str, str] | None = None,
        ) -> dict[str, object]:
            keys.append((headers or {})["Idempotency-Key"])
            if len(keys) == 1:
                raise AdminError("does not answer", status)
            if len(keys) == 2:
                return {"id": "usr_a"}
            raise AdminError("the name is taken", 409)

    client = Lost("http://server", "token")
    assert client.post_once("/users", name="Ada") == {"id": "usr_a"}
    with pytest.raises(AdminError, match="taken"):
        client.post_once("/users", name="Ada")
    assert keys[0] == keys[1] != keys[2] and len(keys) == 3
