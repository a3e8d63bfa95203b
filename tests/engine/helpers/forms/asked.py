"""Schemas that answers are asked to keep to, with what says whether an answer does."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

# It has no types of its own, and is here for tests alone.
import jsonschema
from jsonschema.validators import extend, validator_for

from tests.engine.helpers.forms.published import store, suite
from tests.engine.helpers.forms.schemas import draw_whole, fits

DRAFTS = ("draft2020-12", "draft2019-09", "draft7")


@dataclass(frozen=True, slots=True)
class Asked:
    """A schema, where it is from, and documents that are to be written."""

    origin: str
    schema: dict[str, Any]
    is_as_it_says: Callable[[Any], bool]
    documents: tuple[str, ...] = ()

    @property
    def form(self) -> dict[str, Any]:
        return {"json": self.schema, "disable_any_whitespace": True}


def drawn(rng: random.Random) -> Asked:
    schema = draw_whole(rng)
    return Asked("seeded", schema, lambda value: fits(value, schema))


def of_suite() -> Iterator[Asked]:
    """The official suite's schemas, each once. `Unavailable` if they cannot be fetched."""
    cases = {
        json.dumps({**case.schema, "$schema": ""}): case
        for draft in DRAFTS
        for case in suite(draft)
        if not case.file.startswith("optional") and isinstance(case.schema, dict)
    }
    for case in cases.values():
        documents = tuple(json.dumps(test["data"]) for test in case.tests)
        yield from _judged("suite", case.schema, documents)


def of_store() -> Iterator[Asked]:
    """Those of configuration files. `Unavailable` if they cannot be fetched."""
    for _, schema in store():
        yield from _judged("store", schema)


def _judged(
    origin: str, schema: dict[str, Any], documents: tuple[str, ...] = ()
) -> Iterator[Asked]:
    """By another program's rules, if it has any for this schema."""
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:
        return
    exact = extend(kind, {"multipleOf": _multiple_of})
    valid: Callable[[Any], bool] = exact(schema, format_checker=kind.FORMAT_CHECKER).is_valid
    yield Asked(origin, schema, valid, documents)


def _multiple_of(_: Any, divisor: float, value: Any, schema: Any) -> Iterator[Exception]:
    """As numbers are written, and not as floats have them: 272.5823 is a multiple of 0.0001."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and Fraction(str(value)) % Fraction(str(divisor)):
        yield jsonschema.ValidationError(f"{value} is no multiple of {divisor}")
