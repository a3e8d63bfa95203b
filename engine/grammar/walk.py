"""A JSON schema, schema by schema: which of its values are schemas, and which only data."""

from collections.abc import Callable
from typing import Any

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
VALUES = ("const", "enum", "default", "examples", "x-guidance")  # no schemas


def change_schemas(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The same with each schema changed, the inner ones first. What is given stays as it is."""
    if isinstance(value, list):
        return [change_schemas(each, change) for each in value]
    if not isinstance(value, dict):
        return value
    return change(
        {
            name: {key: change_schemas(each, change) for key, each in said.items()}
            if name in MAPS and isinstance(said, dict)
            else said
            if name in VALUES
            else change_schemas(said, change)
            for name, said in value.items()
        }
    )
