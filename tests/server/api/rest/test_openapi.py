"""The OpenAPI document: every operation is in it, and every reference leads somewhere."""

import json
import re
from typing import Any
from unittest.mock import MagicMock

import pytest

from server.access.identities import ADMIN_SCOPES
from server.api.rest.openapi import openapi
from server.api.rest.operation import Access, ApiContext, Operation
from server.protocol.client_frames import convert
from server.protocol.errors import ApiError
from server.worker.routes import operations
from sessions.directory.users import ROLES
from sessions.store.session_lists import user_cursor

Document = dict[str, Any]


@pytest.fixture(scope="module")
def listed() -> list[Operation]:
    return operations(ApiContext(*(MagicMock() for _ in ApiContext._fields)))


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


def takes(schema: Document, body: Document) -> bool:
    """Whether one of the schema's alternatives takes this body: what `oneOf` says of ours."""

    def fits(alternative: Document) -> bool:
        for name, field in alternative["properties"].items():
            if name in body and (
                field is False
                or (field.get("type") == "null" and body[name] is not None)
                or ("not" in field and body[name] is None)
            ):
                return False
        return set(alternative["required"]) <= set(body)

    return sum(map(fits, schema["oneOf"])) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": "x"},
        {"input": None},
        {"input": "x", "parent_id": None},
        {"input": "x", "regenerate_of": None},
        {"input": "x", "regenerate_of": "msg"},
        {"regenerate_of": "msg"},
        {"regenerate_of": "msg", "parent_id": None},
        {"continue_of": "msg", "input": None},
        {"continue_of": "msg", "input": "x"},
    ],
)
def test_exactly_one_purpose_is_declared_as_it_is_checked(
    document: Document, body: Document
) -> None:
    frame = {"type": "response.create", "session_id": "s", "idempotency_key": "k", **body}
    try:
        convert(frame)
        is_taken = True
    except ApiError:
        is_taken = False
    assert takes(document["components"]["schemas"]["CreateResponseBody"], body) == is_taken


def test_roles_scopes_names_and_cursors_are_declared_as_they_are_checked(
    document: Document,
) -> None:
    fields = document["components"]["schemas"]["CreateUserBody"]["properties"]
    assert fields["roles"]["items"]["enum"] == list(ROLES)
    assert fields["scopes"]["items"]["enum"] == list(ADMIN_SCOPES)
    assert re.search(fields["name"]["pattern"], " \n") is None
    cursors = [
        parameter["schema"]["anyOf"][0]["pattern"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "cursor"
    ]
    assert len(cursors) >= 5
    for known in ("123:ses_x", "12-3", user_cursor("local", (12, "ses_x"))):
        assert all(re.search(pattern, known) for pattern in cursors)
    assert not any(re.search(pattern, wrong) for pattern in cursors for wrong in ("", "*", "a b"))


def test_links_lead_from_an_object_to_the_operations_on_it(document: Document) -> None:
    known = {
        operation["operationId"]: path
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }
    made = document["paths"]["/v1/sessions"]["post"]["responses"]["201"]["links"]
    assert "get_sessions_session_id" in made and "delete_sessions_session_id" in made
    for methods in document["paths"].values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                for link in answer.get("links", {}).values():
                    path = known[link["operationId"]]
                    assert set(link["parameters"]) == set(re.findall(r"{(\w+)}", path))
