"""Families of routes that take bodies, and for each what its clients send when all is well."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.end_to_end.bodies.mutation import mutated, odd

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "t00001 "}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "weather",
        "arguments": '{"city": "Rome"}',
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c1", "output": "rain", "status": "completed"},
    {"role": "user", "content": "t00002 "},
]
CHAT: list[dict[str, Any]] = [
    {
        "model": "$model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "t00001 "}]},
        ],
        "max_completion_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 1,
        "n": 2,
        "stop": ["x"],
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"5": -1},
        "metadata": {"a": "b"},
        "user": "u",
    },
    {
        "model": "$model",
        "messages": [{"role": "user", "content": "t00001 "}],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
        },
    },
    {
        "model": "$model",
        "messages": [
            {"role": "user", "content": "t00001 "},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
        "max_tokens": 3,
        "tools": [
            {
                "type": "function",
                "function": {name: TOOL[name] for name in ("name", "description", "parameters")},
            }
        ],
        "tool_choice": "none",
        "reasoning_effort": "low",
    },
]
COMPLETIONS: list[dict[str, Any]] = [
    {
        "model": "$model",
        "prompt": "t00001 ",
        "max_tokens": 3,
        "logprobs": 2,
        "n": 1,
        "stop": "x",
        "temperature": 0,
        "seed": 3,
    },
    {
        "model": "$model",
        "prompt": [1, 2, 3],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "top_k": 3,
        "min_p": 0.1,
    },
]
EMBEDDINGS: list[dict[str, Any]] = [
    {"model": "$model", "input": ["t00001 ", "t00002 "], "dimensions": 4},
    {"model": "$model", "input": [1, 2, 3], "encoding_format": "base64", "user": "u"},
]
RESPONSES: list[dict[str, Any]] = [
    {
        "model": "$model",
        "input": "t00001 ",
        "max_output_tokens": 3,
        "instructions": "Be brief.",
        "temperature": 0,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "store": True,
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
    },
    {
        "model": "$model",
        "input": ITEMS,
        "max_output_tokens": 3,
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "store": False,
        "tools": [TOOL],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "low", "summary": "auto"},
    },
    {
        "model": "$model",
        "input": [{"role": "user", "content": "t00001 "}],
        "max_output_tokens": 3,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "conversation": {"id": "$conversation"},
        "top_logprobs": 2,
        "background": True,
    },
    {
        "model": "$model",
        "input": "t00002 ",
        "max_output_tokens": 3,
        "previous_response_id": "$response",
        "user": "u",
        "service_tier": "auto",
        "prompt_cache_key": "k",
    },
]


@dataclass(frozen=True)
class Sent:
    """One request."""

    method: str
    path: str
    body: bytes = b""
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


Known = dict[str, list[str]]  # ids of what there is: models, conversations, items, responses
Family = Callable[[random.Random, Known], Sent]


def filled(value: Any, rng: random.Random, known: Known) -> Any:
    """With ids of what there is, in the place of their names."""
    if isinstance(value, dict):
        return {name: filled(part, rng, known) for name, part in value.items()}
    if isinstance(value, list):
        return [filled(part, rng, known) for part in value]
    if isinstance(value, str) and value.startswith("$"):
        return rng.choice(known[value[1:]])
    return value


def openai(rng: random.Random, known: Known) -> Sent:
    """Calls of which nothing is stored."""
    route, bodies = rng.choice(
        (("chat/completions", CHAT), ("completions", COMPLETIONS), ("embeddings", EMBEDDINGS))
    )
    return Sent("POST", f"/v1/{route}", mutated(rng, filled(rng.choice(bodies), rng, known)))


def conversations(rng: random.Random, known: Known) -> Sent:
    """Conversations and their items; one in four is no body's."""
    conversation = _id(rng, known["conversation"])
    item = _id(rng, known["item"])
    one = f"/v1/conversations/{conversation}"
    match rng.randrange(12):
        case 0:
            query = {"after": _id(rng, known["item"]), "limit": _text(rng), "order": _text(rng)}
            chosen = rng.sample(sorted(query), rng.randrange(4))
            return Sent("GET", f"{one}/items", query={name: query[name] for name in chosen})
        case 1:
            method = rng.choice(("GET", "GET", "DELETE"))
            return Sent(method, f"{one}/items/{item}")
        case 2:
            return Sent(rng.choice(("GET", "GET", "GET", "DELETE")), one)
        case 3 | 4:
            body = {"items": rng.sample(ITEMS, 2), "metadata": {"a": "b"}}
            headers = {"Idempotency-Key": str(rng.randrange(20))} if rng.random() < 0.3 else {}
            return Sent("POST", "/v1/conversations", mutated(rng, body), headers=headers)
        case 5 | 6:
            return Sent("POST", one, mutated(rng, {"metadata": {"a": "b", "c": "d"}}))
        case _:
            start = rng.randrange(len(ITEMS))
            return Sent("POST", f"{one}/items", mutated(rng, {"items": ITEMS[start:]}))


def responses(rng: random.Random, known: Known) -> Sent:
    """Answers that are stored, or not."""
    response = _id(rng, known["response"])
    match rng.randrange(12):
        case 0:
            query = {"stream": _text(rng), "starting_after": _text(rng), "include": _text(rng)}
            chosen = rng.sample(sorted(query), rng.randrange(4))
            query = {name: query[name] for name in chosen}
            return Sent("GET", f"/v1/responses/{response}", query=query)
        case 1:
            return Sent("POST", f"/v1/responses/{response}/cancel", mutated(rng, {}))
        case 2:
            path = rng.choice((f"/v1/responses/{response}/input_items", "/v1/responses/x"))
            return Sent("GET", path, query={"limit": _text(rng), "order": _text(rng)})
        case 3:
            body = filled(rng.choice(RESPONSES), rng, known)
            return Sent("POST", "/v1/responses/input_tokens", mutated(rng, body))
        case _:
            body = filled(rng.choice(RESPONSES), rng, known)
            return Sent("POST", "/v1/responses", mutated(rng, body))


def _id(rng: random.Random, known: list[str]) -> str:
    """One that there is, mostly."""
    if rng.random() < 0.9:
        return rng.choice(known)
    return rng.choice(("x", "conv_x", "msg_" + "A" * 22, "%00", "a%2Fb", "é", "conv_" + "A" * 22))


def _text(rng: random.Random) -> str:
    """Of a query."""
    if rng.random() < 0.5:
        return rng.choice(("asc", "desc", "1", "2", "100", "true", "0", "-1", "1.0", ""))
    return str(odd(rng)).encode("utf-8", "replace").decode()[:2000]


FAMILIES: dict[str, Family] = {
    "conversations": conversations,
    "openai": openai,
    "responses": responses,
}
