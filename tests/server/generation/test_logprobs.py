"""`token_logprobs`: numbers that any JSON parser can read, the likeliest tokens first."""

import math

from engine.logprobs import Logprob
from server.generation.logprobs import LOWEST, token_logprobs


def test_each_token_has_its_own_and_the_likeliest_in_its_place() -> None:
    entries = {7: Logprob(-1.5, 2, "b"), 3: Logprob(-0.5, 1, "a"), 9: Logprob(-2.5, 3, "c")}
    (logprob,) = token_logprobs([entries], [7])
    assert (logprob["token"], logprob["logprob"]) == ("b", -1.5)
    assert [one["token"] for one in logprob["top"]] == ["a", "b", "c"]


def test_a_chosen_token_that_is_not_among_the_likeliest_is_not_listed_with_them() -> None:
    entries = {3: Logprob(-0.5, 1, "a"), 7: Logprob(-9.5, 40, "z")}
    (logprob,) = token_logprobs([entries], [7])
    assert logprob["token"] == "z"
    assert [one["token"] for one in logprob["top"]] == ["a"]


def test_what_json_cannot_say_is_the_lowest_number() -> None:
    (logprob,) = token_logprobs([{1: Logprob(-math.inf, 1, None)}], [1])
    assert (logprob["token"], logprob["logprob"]) == ("", LOWEST)


def test_nothing_was_asked_for() -> None:
    assert token_logprobs(None, [1, 2]) == []
