"""The log probabilities of an answer's tokens, in the protocol's form."""

from collections.abc import Mapping, Sequence
from typing import Any

from server.engines.client import Logprob

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


def token_logprobs(
    logprobs: Sequence[Mapping[int, Logprob]] | None, token_ids: Sequence[int]
) -> list[dict[str, Any]]:
    """One object for each token: its own, and the likeliest ones in its place."""
    return [
        {**_one(entries[token_id]), "top": [_one(entry) for entry in _likeliest(entries)]}
        for token_id, entries in zip(token_ids, logprobs or (), strict=False)
    ]


def prompt_logprobs(
    logprobs: Sequence[Mapping[int, Logprob] | None], token_ids: Sequence[int], first: str
) -> list[dict[str, Any]]:
    """The same of a prompt, whose first token follows nothing: it has no logprob and no others."""
    rest = [entries for entries in logprobs[1:] if entries is not None]
    return [
        {"token": first, "logprob": None, "top": None},
        *token_logprobs(rest, token_ids[1:]),
    ]


def _likeliest(entries: Mapping[int, Logprob]) -> list[Logprob]:
    """Without the chosen token, where that is none of them."""
    ranked = sorted(entries.values(), key=lambda entry: entry.rank or 0)
    return [entry for place, entry in enumerate(ranked, 1) if entry.rank == place]


def _one(entry: Logprob) -> dict[str, Any]:
    return {"token": entry.decoded_token or "", "logprob": max(entry.logprob, LOWEST)}
