"""The error object, close reasons, and the one table from the store's refusals."""

import pytest

from server.protocol.close_codes import MAX_REASON_BYTES, CloseCode, CloseConnection
from server.protocol.errors import CODES, ApiError, invalid_field
from server.protocol.store_errors import translate_store_errors
from sessions.model import errors


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_type_and_a_status(code: str) -> None:
    error = ApiError(code, "words")
    body = error.body("e1")
    assert body["type"] == error.type
    assert (body["code"], body["message"], body["event_id"]) == (code, "words", "e1")
    assert 400 <= error.http_status <= 503
    assert ("retry_after_ms" in body) == (error.type == "overloaded_error")


def test_fields_that_are_not_set_are_left_out() -> None:
    assert invalid_field("input", "empty").body() == {
        "type": "invalid_request_error",
        "code": "invalid_field",
        "message": "empty",
        "param": "input",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SessionNotFound(), "session_not_found"),
        (errors.MessageNotFound(), "message_not_found"),
        (errors.ResponseNotFound(), "response_not_found"),
        (errors.InvalidCursor("x"), "invalid_field"),
        (errors.StoreUnavailable(), "store_unavailable"),
    ],
)
def test_the_stores_refusals_are_translated(error: Exception, code: str) -> None:
    with pytest.raises(ApiError) as raised, translate_store_errors():
        raise error
    assert raised.value.code == code


def test_only_a_request_that_could_store_something_is_in_doubt_whether_it_did() -> None:
    said = []
    for only_reads in (True, False):
        with pytest.raises(ApiError) as raised, translate_store_errors(only_reads=only_reads):
            raise errors.StoreUnavailable
        said.append(raised.value.message)
    assert "stored" not in said[0] and "whether this was stored is not known" in said[1]


def test_what_the_store_must_not_say_to_clients_passes_as_it_is() -> None:
    for error in (errors.RunGone(), ValueError("x")):
        with pytest.raises(type(error)), translate_store_errors():
            raise error


def test_a_close_reason_fits_its_frame_and_is_whole_characters() -> None:
    closing = CloseConnection(CloseCode.RESTART, "é" * 200)
    assert len(closing.reason.encode()) <= MAX_REASON_BYTES
    assert set(closing.reason) == {"é"}
