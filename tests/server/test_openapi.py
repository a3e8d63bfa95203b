"""The OpenAPI document: every operation is in it, and every reference leads somewhere."""

import json
import re
from typing import Any
from unittest.mock import MagicMock

import pytest

from server.openapi import openapi
from server.operations import Access, Doors, Operation
from server.rest import operations

Document = dict[str, Any]


@pytest.fixture(scope="module")
def listed() -> list[Operation]:
    return operations(Doors(*(MagicMock() for _ in Doors._fields)))


@pytest.fixture(scope="module")
def document(listed: list[Operation]) -> Document:
    document: Document = json.loads(json.dumps(openapi(listed)))
    return document


def test_every_operation_is_described_once(listed: list[Operation], document: Document) -> None:
    described = [
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    ]
    assert sorted(described) == sorted((one.method, one.path) for one in listed)
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


def test_references_lead_somewhere_and_nothing_is_left_over(document: Document) -> None:
    named = set(re.findall(r'"#/components/schemas/([\w.]+)"', json.dumps(document)))
    assert named == set(document["components"]["schemas"])


def test_patterns_are_those_of_json_schema(document: Document) -> None:
    assert r"\\Z" not in json.dumps(document)


def test_path_parameters_are_declared(document: Document) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            declared = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))


def test_public_operations_need_no_credential_and_admin_ones_a_bearer(
    listed: list[Operation], document: Document
) -> None:
    ways: dict[Access, list[Document]] = {
        Access.PUBLIC: [],
        Access.USER: [{"bearer": []}, {"cookie": []}],
        Access.ADMIN: [{"bearer": []}],
    }
    for one in listed:
        assert document["paths"][one.path][one.method.lower()]["security"] == ways[one.access]


def test_queries_and_bodies_say_what_is_validated(document: Document) -> None:
    page = document["paths"]["/v1/sessions"]["get"]["parameters"]
    limit = next(parameter for parameter in page if parameter["name"] == "limit")
    assert (limit["schema"]["minimum"], limit["schema"]["maximum"]) == (1, 200)
    body = document["components"]["schemas"]["CreateResponseBody"]["properties"]
    assert {"input", "regenerate_of", "continue_of", "settings", "on_busy"} <= set(body)
    assert not {"session_id", "idempotency_key", "event_id"} & set(body)
