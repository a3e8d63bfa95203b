"""Run in the environment of OpenAI's client: whether objects are what its types say, strictly.

Each line of the input is `[type, object]`, as in `openai.types.conversations:ConversationItem`.
Printed is what is wrong: a field that is missing or has another type, or one that no type knows.
"""

import importlib
import json
import sys
from functools import cache
from typing import Any

from openai import BaseModel
from pydantic import TypeAdapter, ValidationError


def unknown_fields(value: Any, where: str) -> list[str]:
    if isinstance(value, list):
        return [
            name
            for place, each in enumerate(value)
            for name in unknown_fields(each, f"{where}[{place}]")
        ]
    if not isinstance(value, BaseModel):
        return []
    found = [f"{where}.{name}" for name in value.model_extra or {}]
    for name in type(value).model_fields:
        found += unknown_fields(getattr(value, name), f"{where}.{name}")
    return found


@cache
def adapter(path: str) -> TypeAdapter[Any]:
    module, name = path.split(":")
    return TypeAdapter(getattr(importlib.import_module(module), name))


def main() -> None:
    for line in sys.stdin:
        path, given = json.loads(line)
        try:
            read = adapter(path).validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            print(f"{path}: {error} in {given}")
            continue
        for field in unknown_fields(read, path):
            print(f"{field} is known to no type, in {given}")


main()
