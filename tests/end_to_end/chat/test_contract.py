"""The OpenAPI document against the server: requests at random are answered as it declares.

`Http.ask` holds every answer against its operation: what is refused has the error envelope, what is
granted the declared status and body. Here the requests come from the document itself, half of their
values as it wants them and half of them not. Hypothesis prints how to repeat what it finds.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.api.rest.openapi import openapi
from tests.end_to_end.clients.http_client import LISTED, Http, admin_token
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_word

DOCUMENT = openapi(LISTED)
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = sorted(
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if path != "/login"  # it answers people, not programs
)
# What a parameter of this name may stand for: one of the world's, somebody else's, or nobody's.
KNOWN = ("session_id", "message_id", "response_id", "uid")
WORDS = st.text(max_size=12) | st.sampled_from(["", "*", "null", "-1", "1e9", "ses_", "a/b", "\n"])
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
FEW = settings(
    max_examples=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def fitting(schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that this schema takes, more or less: patterns are left to chance."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        return st.one_of(*(fitting(one, depth) for one in schema["anyOf"]))
    match schema.get("type"):
        case "object" if depth < 4:
            fields = {n: values(s, depth + 1) for n, s in schema.get("properties", {}).items()}
            required = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=fields)
        case "array" if depth < 4:
            return st.lists(values(schema.get("items", {}), depth + 1), max_size=3)
        case "integer":
            return st.integers(schema.get("minimum", -5), min(schema.get("maximum", 300), 300))
        case "number":
            return st.floats(0, 2)
        case "boolean":
            return st.booleans()
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=20)
    return JUNK


def values(schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Mostly what fits."""
    return st.integers(0, 4).flatmap(lambda n: fitting(schema, depth) if n else JUNK)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """Method, path with `{names}` of known things left in, and the rest of a request."""
    method, path, operation = draw(st.sampled_from(OPERATIONS))
    options: dict[str, Any] = {"params": {}, "headers": {}}
    for parameter in operation.get("parameters", ()):
        name, where = parameter["name"], parameter["in"]
        if where == "path":
            unknown = st.sampled_from(["ses_" + "A" * 22, "msg_" + "A" * 22, "usr_" + "A" * 22])
            choices = unknown | WORDS.filter(lambda word: word.strip("./ \n"))
            if name not in KNOWN or draw(st.integers(0, 2)) == 0:
                path = path.replace(f"{{{name}}}", quote(draw(choices), safe=""))
        elif where == "query" and draw(st.booleans()):
            options["params"][name] = str(draw(values(parameter["schema"])))
        elif where == "header" and (parameter["required"] or draw(st.booleans())):
            options["headers"][name] = draw(st.sampled_from(['"1"', "*", "k1", "", "a b", '"x"']))
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]["schema"]
        options["content"] = json.dumps(draw(values(content)))
        kinds = ["application/json"] * 5 + ["text/plain", ""]
        options["headers"]["Content-Type"] = draw(st.sampled_from(kinds))
    return method, path, options


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[Http]:
    async with Http(server, admin_token(server)) as admin:
        yield admin


async def answer_as_declared(
    server: Server, admin: Http, request: tuple[str, str, dict[str, Any]]
) -> None:
    """Make the request in a world of its own: a session with an answer, and a user."""
    method, path, options = request
    user = (await admin.post("/v1/admin/users", {"name": "Ada"})).json()
    async with Http(server, user["token"]) as http, Client(server, token=user["token"]) as client:
        session_id = await client.new_session()
        short = {"temperature": 0, "max_output_tokens": 2}
        answer = await client.done(await client.ask(session_id, oracle_word(0), settings=short))
        done = answer.done["response"] if answer.done else {}
        known = {"session_id": session_id, "uid": user["id"]}
        known |= {"message_id": done["message_id"], "response_id": done["id"]}
        asker = admin if path.startswith("/v1/admin") else http
        answered = await asker.ask(method, path.format_map(known), **options)
        assert answered.status_code < 500, answered.text
    await admin.ask("DELETE", f"/v1/admin/users/{user['id']}")


@FEW
@given(request=requests())
async def test_any_request_is_answered_as_the_document_declares(
    server: Server, admin: Http, request: tuple[str, str, dict[str, Any]]
) -> None:
    async with asyncio.timeout(30):
        await answer_as_declared(server, admin, request)


@pytest.mark.slow
@settings(FEW, max_examples=600)
@given(request=requests())
async def test_many_requests_are_answered_as_the_document_declares(
    server: Server, admin: Http, request: tuple[str, str, dict[str, Any]]
) -> None:
    async with asyncio.timeout(30):
        await answer_as_declared(server, admin, request)
