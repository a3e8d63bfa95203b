"""Bodies of requests that somebody has changed: their JSON in its parts, or their bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from tests.fuzz.damage import damaged

# What stands in the place of something else. Some of it is no JSON to strict readers.
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    129,
    10**6,
    2**31,
    2**53 + 1,
    2**64,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "x",
    "auto",
    "none",
    "required",
    "text",
    "user",
    "system",
    "assistant",
    "message",
    "function",
    "function_call",
    "input_image",
    "json_schema",
    "t00001 ",
    "\0",
    "\ud800",
    "\u202e\ufeff",
    "💐" * 50,
    "<|endoftext|>",
    "x" * 5000,
    "t00001 " * 20_000,
    "msg_" + "A" * 22,
    "conv_" + "A" * 22,
    "resp_" + "A" * 33,
    "../../etc/passwd",
    "${x}{{y}}%s",
    [],
    [[]],
    {},
    {"": ""},
    {"type": "x"},
    ["x"] * 300,
    [None] * 3000,
    {"a": {"a": {"a": {}}}},
    {str(number): number for number in range(200)},
)
NAMES = ("", "x", "type", "id", "role", "content", "items", "model", "n", "stream", "__proto__")


def nested(rng: random.Random) -> Any:
    """Something deep."""
    value: Any = 1
    for _ in range(rng.choice((10, 40, 200))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def odd(rng: random.Random) -> Any:
    return nested(rng) if rng.random() < 0.03 else copy.deepcopy(rng.choice(ODD))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each part of a value: what holds it, and under which name or number."""
    found: list[tuple[Any, Any]] = []
    held = list(value.items()) if isinstance(value, dict) else []
    held = list(enumerate(value)) if isinstance(value, list) else held
    for name, part in held:
        found.append((value, name))
        found += places(part)
    return found


def changed(rng: random.Random, body: Any) -> Any:
    """The body with one to four changes, each somewhere in it."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        found = places(body)
        if not found:
            return body
        holder, name = rng.choice(found)
        match rng.randrange(7):
            case 0 | 1 | 2:
                holder[name] = odd(rng)
            case 3:
                del holder[name]
            case 4:  # what stands elsewhere in it
                other, place = rng.choice(found)
                holder[name] = copy.deepcopy(other[place])
            case 5 if isinstance(holder, dict):
                holder[rng.choice(NAMES)] = holder.pop(name)
            case 5:
                holder[name:name] = [holder[name]] * rng.choice((1, 2, 100))
            case _ if isinstance(holder, dict):
                holder[rng.choice(NAMES)] = odd(rng)
            case _:
                holder.append(odd(rng))
    return body


def mutated(rng: random.Random, body: Any) -> bytes:
    """What is sent in its place: mostly JSON with something wrong in it."""
    whole = changed(rng, body) if rng.random() < 0.95 else odd(rng)
    sent = json.dumps(whole, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return damaged(rng, sent) if rng.random() < 0.15 else sent
