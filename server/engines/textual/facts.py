"""`Facts`: what an engine says of itself by its list of models, and what follows from that."""

from typing import Any

import msgspec

from server.engines.client import Exactness
from server.engines.remote.wire.problems import Broken, Misfit

DEFAULT_CONTEXT = 8192  # tokens, of an engine that does not say it
MAX_CONTEXT = 1 << 31  # tokens: who says more says nothing
MAX_NAMED = 5  # models in a line of the log

# Who says so takes an answer that is to go on: by `continue_final_message`, or as the last message.
BY_FIELD = frozenset(("vllm", "sglang", "parley"))
BY_LAST_MESSAGE = frozenset(("llamacpp",))
COUNTING = frozenset(("vllm", "sglang", "parley"))  # with each event, who is asked for that
# Who takes `top_k`, `min_p` and a penalty for repetitions, and as many stop strings as there are.
WIDER = BY_FIELD | BY_LAST_MESSAGE


class Facts(msgspec.Struct, frozen=True):
    """Of one model of one engine."""

    model: str  # as the engine calls it
    server: str = ""  # the program that it is, in its own words; empty: unknown
    context: int | None = None  # tokens of a prompt and its answer together

    @property
    def exactness(self) -> Exactness:
        return Exactness.TEXT if self.can_continue else Exactness.NONE

    @property
    def can_continue(self) -> bool:
        """Whether it goes on with the text of an answer."""
        return self.server in BY_FIELD or self.server in BY_LAST_MESSAGE

    @property
    def is_wider(self) -> bool:
        return self.server in WIDER


class _Meta(msgspec.Struct, frozen=True):
    n_ctx: int | None = None  # of llama.cpp: what it was started with


class _Model(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None  # of vLLM, SGLang and Parley
    context_length: int | None = None  # of several gateways
    meta: _Meta | None = None

    @property
    def context(self) -> int | None:
        meta = None if self.meta is None else self.meta.n_ctx
        return self.max_model_len or self.context_length or meta


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


def read_facts(body: bytes, name: str, given: str | None) -> Facts:
    """What `GET /models` says; `given` is what the operator says that the model is called there.

    Without that it is the model of the `name` that it has here, or the only one. Raises
    `Misfit` if there is no such model, and `Broken` for what is no list of models.
    """
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without an end
        raise Broken("its list of models cannot be read") from error
    wanted = given or name
    found = next((each for each in models if each.id == wanted), None)
    if found is None and given is None and len(models) == 1:
        found = models[0]
    if found is None:
        names = [each.id for each in models][:MAX_NAMED]
        there = f"there are {', '.join(names)}" if names else "there are none"
        raise Misfit(f"it has no model {wanted}: {there}; ;model=NAME says which it is")
    context = found.context or 0
    is_possible = 0 < context <= MAX_CONTEXT
    return Facts(found.id, _server(found), context if is_possible else None)


def _server(model: _Model) -> str:
    said: Any = model.owned_by or ""
    return str(said).lower()
