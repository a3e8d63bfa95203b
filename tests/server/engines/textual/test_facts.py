"""`Facts`: what an engine's list of models says of it."""

from typing import Any

import orjson
import pytest

from server.engines.client import Exactness
from server.engines.remote.wire.problems import Broken, Misfit
from server.engines.textual.facts import Facts, read_facts

UNREADABLE = (b'{"data": [{"id": "\xff"}]}', b'{"x": ' + b"[" * 100_000)


def listed(*models: dict[str, Any]) -> bytes:
    return orjson.dumps({"object": "list", "data": models})


def test_the_model_is_the_named_one_or_the_only_one() -> None:
    both = listed({"id": "a"}, {"id": "b"})
    assert read_facts(both, "b", None).model == "b"
    assert read_facts(both, "mine", "a").model == "a"
    assert read_facts(listed({"id": "a"}), "mine", None).model == "a"


@pytest.mark.parametrize("given", [None, "c"])
def test_a_model_that_is_not_there_is_refused_with_those_that_are(given: str | None) -> None:
    with pytest.raises(Misfit, match="there are a, b"):
        read_facts(listed({"id": "a"}, {"id": "b"}), "c", given)


@pytest.mark.parametrize(
    ("server", "said", "exactness", "context"),
    [
        ("vllm", {"max_model_len": 4096}, Exactness.TEXT, 4096),
        ("sglang", {"max_model_len": 4096}, Exactness.TEXT, 4096),
        ("parley", {"max_model_len": 4096}, Exactness.TEXT, 4096),
        ("llamacpp", {"meta": {"n_ctx": 2048, "n_ctx_train": 9}}, Exactness.TEXT, 2048),
        ("system", {}, Exactness.NONE, None),
        ("", {"context_length": 100}, Exactness.NONE, 100),
        ("", {"context_length": 1 << 60}, Exactness.NONE, None),
        ("", {"context_length": -1}, Exactness.NONE, None),
    ],
)
def test_who_it_is_says_what_it_can(
    server: str, said: dict[str, Any], exactness: Exactness, context: int | None
) -> None:
    facts = read_facts(listed({"id": "m", "owned_by": server, **said}), "m", None)
    assert facts == Facts("m", server, context)
    assert facts.exactness is exactness


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"data": 3}', b'{"data": [{}]}', *UNREADABLE]
)
def test_what_is_no_list_of_models_is_no_reply(body: bytes) -> None:
    with pytest.raises(Broken):
        read_facts(body, "m", None)
