"""Ids and keys: known by their shape, never the same twice, and they tell no order."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from sessions.model.ids import (
    derived_session_id,
    is_idempotency_key,
    is_message_id,
    is_response_id,
    is_session_id,
    new_message_id,
    new_response_id,
    new_session_id,
    session_of,
)


def test_ids_have_their_shape_and_a_response_id_carries_its_session() -> None:
    session_id = new_session_id()
    response_id = new_response_id(session_id)
    assert is_session_id(session_id) and is_message_id(new_message_id())
    assert is_response_id(response_id) and len(response_id) == 5 + 22 + 11
    assert session_of(response_id) == session_id
    assert len({new_message_id() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "value",
    ["", "ses_", "ses_" + "a" * 21, "ses_" + "a" * 23, "ses_" + "a" * 21 + "{", None, 5,
     "ses_" + "a" * 22 + "\n", "msg_" + "a" * 22, "ses_" + "ä" * 22, ["ses_" + "a" * 22]],
)  # fmt: skip
def test_a_malformed_id_is_no_id(value: object) -> None:
    assert not is_session_id(value)
    assert not is_response_id(value)


def test_idempotency_keys_are_1_to_128_safe_characters() -> None:
    assert is_idempotency_key("aZ09_-") and is_idempotency_key("a" * 128)
    for key in ("", "a" * 129, "a b", "a:b", "{a}", "a\n", None):
        assert not is_idempotency_key(key)


def test_a_derived_session_id_depends_on_user_and_key() -> None:
    assert derived_session_id("a", "k") == derived_session_id("a", "k")
    assert is_session_id(derived_session_id("a", "k"))
    assert len({derived_session_id(u, k) for u in ("a", "b") for k in ("k", "l")}) == 4


@pytest.mark.row("P12")
def test_ids_are_unique_have_their_shape_and_tell_no_order() -> None:
    session_id = new_session_id()
    shaped: list[tuple[Callable[[], str], Callable[[object], bool]]] = [
        (new_session_id, is_session_id),
        (new_message_id, is_message_id),
        (lambda: new_response_id(session_id), is_response_id),
    ]
    for make, has_shape in shaped:
        ids = [make() for _ in range(100_000)]
        assert len(set(ids)) == len(ids)
        assert all(map(has_shape, ids))
        num_rises = sum(first < second for first, second in pairwise(ids))
        assert 49_000 < num_rises < 51_000
