"""Which calls have one name."""

from typing import Any

import pytest

from server.commands.stateless.tries import Names, Try

CALL: dict[str, Any] = {"credential": "a", "route": "/v1/x", "body": b"{}"}


def test_calls_are_one_by_all_that_they_say_or_by_their_key() -> None:
    names = Names("secret")
    assert names.name(Try(**CALL, number=0)) == names.name(Try(**CALL, number=1))
    keyed = Try(**CALL, key="k")
    other_body = Try(**CALL | {"body": b"[]"}, key="k")
    assert names.name(keyed) == names.name(other_body) != names.name(Try(**CALL))
    assert names.content(keyed) != names.content(other_body)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("changed", [{"credential": "b"}, {"route": "/v1/y"}, {"body": b"[]"}])
def test_another_value_makes_another_name(key: str | None, changed: dict[str, Any]) -> None:
    names = Names("secret")
    one, other = Try(**CALL, key=key), Try(**CALL | changed, key=key)
    assert names.content(one) != names.content(other)
    is_one = key is not None and "credential" not in changed
    assert (names.name(one) == names.name(other)) == is_one


def test_who_does_not_know_the_secret_finds_no_name() -> None:
    call = Try(**CALL)
    assert Names("secret").name(call) != Names("").name(call)


@pytest.mark.parametrize(
    ("given", "may_be"), [({}, False), ({"number": 0}, True), ({"key": "k"}, True)]
)
def test_a_repeat_is_recognized_by_its_key_or_its_number(
    given: dict[str, Any], may_be: bool
) -> None:
    assert Try(**CALL, **given).may_be_repeated == may_be
