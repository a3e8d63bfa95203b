"""`/v1/conversations` at a whole worker: what each route keeps, tells and refuses."""

import asyncio
from typing import Any

from server.api.conversations.objects import INCLUDABLE, MAX_ADDED
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.oracle.history import History
from tests.end_to_end.sdks.environment import strict_problems
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.api.conversations.house import GOOD, HELLO, PATH, House, session_of, text_of
from tests.server.helpers.in_process import LocalClient, running_worker, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

UNKNOWN = "conv_" + "A" * 22
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}


async def listed(house: House) -> list[str]:
    _, page = await house.ask("GET", "/v1/sessions")
    return [session["id"] for session in page["sessions"]]


# ---- conversations ------------------------------------------------------------------------------


async def test_a_conversation_is_a_session_that_is_in_no_list(house: House) -> None:
    status, made = await house.ask("POST", PATH, {"metadata": {"topic": "tulips"}})
    assert status == 200
    assert made["object"] == "conversation" and made["metadata"] == {"topic": "tulips"}
    session = await house.store.sessions.get("local", session_of(made["id"]))
    assert session.created_at // 1000 == made["created_at"] and session.hidden
    assert await house.ask("GET", f"{PATH}/{made['id']}") == (200, made)
    assert await listed(house) == []
    status, _ = await house.ask("GET", f"/v1/sessions/{session.id}")
    assert status == 200


async def test_it_goes_after_a_while_without_use(house: House) -> None:
    session_id = session_of(await house.made(HELLO))
    key = house.store.keys.session(session_id, "m")
    life = await house.store.client.call("PTTL", key)
    assert 29 * 86_400_000 < life <= 30 * 86_400_000


async def test_it_begins_with_its_items(house: House) -> None:
    conversation = await house.made({"role": "developer", "content": "Be brief."}, HELLO, GOOD)
    page = await house.page(conversation, "order=asc")
    assert [item["role"] for item in page["data"]] == ["developer", "user", "assistant"]
    assert [text_of(item) for item in page["data"]] == ["Be brief.", "Hello", "Good morning"]
    session = await house.store.sessions.get("local", session_of(conversation))
    assert (session.message_count, session.head) == (3, page["last_id"])


async def test_a_key_makes_one_conversation(house: House) -> None:
    first, second, other = [
        (await house.ask("POST", PATH, {"items": [HELLO]}, **{"idempotency-key": key}))[1]["id"]
        for key in ("k", "k", "l")
    ]
    assert first == second != other
    assert len((await house.page(first))["data"]) == 1
    status, answer = await house.ask("POST", PATH, {}, **{"idempotency-key": "*"})
    assert (status, answer["error"]["param"]) == (400, "Idempotency-Key")


async def test_its_metadata_is_replaced_whole(house: House) -> None:
    conversation = await house.made(metadata={"a": "1", "b": "2"})
    path = f"{PATH}/{conversation}"
    for metadata in ({"c": "3"}, None):
        status, changed = await house.ask("POST", path, {"metadata": metadata})
        assert (status, changed["metadata"]) == (200, metadata or {})
        assert (await house.ask("GET", path))[1]["metadata"] == (metadata or {})


async def test_it_is_deleted_with_all_its_messages(house: House) -> None:
    conversation = await house.made(HELLO)
    assert await house.ask("DELETE", f"{PATH}/{conversation}") == (
        200,
        {"id": conversation, "object": "conversation.deleted", "deleted": True},
    )
    assert await house.refused("GET", f"{PATH}/{conversation}") == (
        404,
        "session_not_found",
        "conversation_id",
    )


async def test_any_session_of_the_users_is_one(house: House) -> None:
    async with LocalClient(house.worker, History(lambda: None)) as client:
        session = await client.new_session()
        await client.done(
            await client.ask(session, oracle_word(1), settings={"max_output_tokens": 3})
        )
        conversation = "conv_" + session.removeprefix("ses_")
        status, read = await house.ask("GET", f"{PATH}/{conversation}")
        assert (status, read["metadata"]) == (200, {})
        answer, question = (await house.page(conversation))["data"]
        assert (question["role"], text_of(question)) == ("user", oracle_word(1))
        assert (answer["role"], text_of(answer)) == ("assistant", oracle_answer(1, 3))
        assert await listed(house) == [session]  # and stays where it was
        await house.added(conversation, HELLO)
        assert await listed(house) == [session]


async def test_answers_of_every_route_are_what_openais_types_say(house: House) -> None:
    conversation = await house.made(HELLO, GOOD, CALL, OUTPUT, metadata={"a": "b"})
    path = f"{PATH}/{conversation}"
    _, read = await house.ask("GET", path)
    _, changed = await house.ask("POST", path, {"metadata": {}})
    pages = [await house.page(conversation), await house.page(await house.made())]
    _, added = await house.ask("POST", f"{path}/items", {"items": [HELLO]})
    _, item = await house.ask("GET", f"{path}/items/{added['first_id']}")
    _, after = await house.ask("DELETE", f"{path}/items/{added['first_id']}")
    _, deleted = await house.ask("DELETE", path)
    named = [("conversation:Conversation", each) for each in (read, changed, after)]
    named += [("conversation_item_list:ConversationItemList", each) for each in (*pages, added)]
    named += [("conversation_item:ConversationItem", item)]
    named += [("conversation_deleted_resource:ConversationDeletedResource", deleted)]
    assert strict_problems((f"conversations.{name}", each) for name, each in named) == ""


# ---- adding -------------------------------------------------------------------------------------


async def test_added_items_come_after_the_head_and_viewers_see_them(house: House) -> None:
    conversation = await house.made(HELLO)
    async with LocalClient(house.worker, History(lambda: None)) as viewer:
        await viewer.reply("session.subscribe", session_id=session_of(conversation))
        added = await house.added(conversation, GOOD, HELLO)
        seen = [await viewer.next("message.created") for _ in added]
        assert [frame["message"]["id"] for frame in seen] == [item["id"] for item in added]
        first_id = seen[0]["message"]["id"]
        await house.ask("DELETE", f"{PATH}/{conversation}/items/{first_id}")
        frame = await viewer.next("message.updated")
        assert frame["message"]["content"] == [{"type": "text", "text": ""}]
        assert frame["message"]["redacted"] == ["message"]
        await house.ask("POST", f"{PATH}/{conversation}", {"metadata": {"a": "b"}})
        frame = await viewer.next("session.updated")
        assert "metadata" not in frame["session"]
    page = await house.page(conversation, "order=asc")
    assert [item["role"] for item in page["data"]] == ["user", "user"]


async def test_who_watches_at_another_worker_sees_them_too(redis_server: EmbeddedRedis) -> None:
    dice = Dice(5)
    engine, prefix = ScriptedEngine(dice), fresh_prefix()
    async with running_workers(redis_server.url, prefix, engine, dice, 2) as (here, there):
        house = House(here, engine)
        conversation = await house.made(HELLO)
        async with LocalClient(there, History(lambda: None)) as viewer:
            await viewer.reply("session.subscribe", session_id=session_of(conversation))
            (added,) = await house.added(conversation, GOOD)
            frame = await viewer.next("message.created")
            assert frame["message"]["id"] == added["id"]
            await house.ask("DELETE", f"{PATH}/{conversation}/items/{added['id']}")
            assert (await viewer.next("message.updated"))["message"]["redacted"] == ["message"]


async def test_an_answer_knows_the_items_before_it(house: House) -> None:
    conversation = await house.made(HELLO, GOOD)
    async with LocalClient(house.worker, History(lambda: None)) as client:
        session = session_of(conversation)
        await client.reply("session.subscribe", session_id=session)
        response = await client.ask(session, oracle_word(5), settings={"max_output_tokens": 3})
        await client.done(response)
    texts = [text_of(item) for item in (await house.page(conversation, "order=asc"))["data"]]
    assert texts == ["Hello", "Good morning", oracle_word(5), oracle_answer(5, 3)]


async def test_outputs_may_come_in_another_call_than_their_calls(house: House) -> None:
    other_call, other_output = {**CALL, "call_id": "c2"}, {**OUTPUT, "call_id": "c2"}
    conversation = await house.made(HELLO, CALL, other_call)
    path = f"{PATH}/{conversation}/items"
    await house.added(conversation, other_output)
    assert await house.refused("POST", path, {"items": [other_output]}) == (
        400,
        "invalid_field",
        "items[0].call_id",
    )
    await house.added(conversation, OUTPUT, GOOD)
    kinds = [item["type"] for item in (await house.page(conversation, "order=asc"))["data"]]
    assert kinds == ["message", *["function_call"] * 2, *["function_call_output"] * 2, "message"]


async def test_two_who_add_at_once_are_both_heard(house: House) -> None:
    conversation = await house.made()
    both = [house.added(conversation, HELLO, GOOD) for _ in range(3)]
    added = [[item["id"] for item in items] for items in await asyncio.gather(*both)]
    page = await house.page(conversation, "order=asc")
    pairs = [[item["id"] for item in page["data"][at : at + 2]] for at in (0, 2, 4)]
    assert sorted(pairs) == sorted(added)  # and none stands between the other's


async def test_nothing_is_added_while_an_answer_is_written(house: House) -> None:
    conversation = await house.made()
    async with LocalClient(house.worker, History(lambda: None)) as client:
        session = session_of(conversation)
        await client.reply("session.subscribe", session_id=session)
        response = await client.ask(session, oracle_word(1), settings={"max_output_tokens": 3})
        request = house.engine.requests[response]
        request.is_held.add("last")
        async with asyncio.timeout(PATIENCE):
            await request.reached["last"].wait()
        path = f"{PATH}/{conversation}/items"
        busy = (409, "response_in_progress", None)
        assert await house.refused("POST", path, {"items": [HELLO]}) == busy
        (answer, _) = (await house.page(conversation))["data"]
        assert answer["status"] == "in_progress"
        assert await house.refused("DELETE", f"{path}/{answer['id']}") == busy
        request.released.set()
        await client.done(response)
    await house.added(conversation, HELLO)


async def test_quotas_hold_for_items_too(redis_server: EmbeddedRedis) -> None:
    dice = Dice(3)
    async with running_worker(
        redis_server.url, fresh_prefix(), ScriptedEngine(dice), dice, "w0"
    ) as worker:
        house = House(worker, ScriptedEngine(dice))
        context = worker.store.messages._context
        object.__setattr__(context.quotas, "messages_per_session", 2)
        object.__setattr__(context.quotas, "sessions_per_user", 1)
        conversation = await house.made(HELLO)
        path = f"{PATH}/{conversation}/items"
        full = (429, "quota_exceeded", None)
        assert await house.refused("POST", path, {"items": [GOOD, HELLO]}) == full
        assert len((await house.page(conversation))["data"]) == 1
        assert await house.refused("POST", PATH, {}) == full


# ---- one item -----------------------------------------------------------------------------------


async def test_each_item_is_found_by_its_id_as_the_list_has_it(house: House) -> None:
    conversation = await house.made(HELLO, GOOD, CALL, OUTPUT)
    for item in (await house.page(conversation))["data"]:
        path = f"{PATH}/{conversation}/items/{item['id']}"
        assert await house.ask("GET", path) == (200, item)


async def test_a_deleted_item_is_gone_for_everybody_and_the_rest_stays(house: House) -> None:
    conversation = await house.made(HELLO, GOOD, CALL, OUTPUT, GOOD)
    items = (await house.page(conversation, "order=asc"))["data"]
    for item in list(items):
        path = f"{PATH}/{conversation}/items/{item['id']}"
        status, body = await house.ask("DELETE", path)
        assert (status, body["id"]) == (200, conversation)
        items.remove(item)
        assert (await house.page(conversation, "order=asc"))["data"] == items
        assert await house.refused("GET", path) == (404, "item_not_found", "item_id")
        assert await house.refused("DELETE", path) == (404, "item_not_found", "item_id")
    session = await house.store.sessions.get("local", session_of(conversation))
    assert session.message_count == 4  # their places stay
    row = await house.store.client.call("HVALS", house.store.keys.session(session.id, "msg"))
    assert b"Good morning" not in b"".join(row) and b"rain" not in b"".join(row)
    await house.added(conversation, HELLO)


async def test_an_item_of_another_branch_is_not_there(house: House) -> None:
    conversation = await house.made(HELLO)
    (old,) = (await house.page(conversation))["data"]
    async with LocalClient(house.worker, History(lambda: None)) as client:
        session = session_of(conversation)
        await client.reply("session.subscribe", session_id=session)
        settings = {"max_output_tokens": 1}
        edit = await client.ask(session, oracle_word(1), parent_id=None, settings=settings)
        await client.done(edit)
    assert len((await house.page(conversation))["data"]) == 2
    path = f"{PATH}/{conversation}/items/{old['id']}"
    assert await house.refused("GET", path) == (404, "item_not_found", "item_id")


# ---- what is refused ----------------------------------------------------------------------------

FIELDS: list[tuple[str, str, Any, str, tuple[int, str, str | None]]] = [
    # method, path after a conversation's (or "" of a new one), body, query, refusal
    ("POST", "", {"items": [{}]}, "", (400, "invalid_field", "items[0].role")),
    ("POST", "", {"items": [HELLO] * (MAX_ADDED + 1)}, "", (400, "invalid_field", "items")),
    ("POST", "", {"items": {}}, "", (400, "invalid_field", "items")),
    ("POST", "", {"metadata": {"a": 1}}, "", (400, "invalid_field", "metadata[...]")),
    ("POST", "", {"title": "x"}, "", (400, "invalid_field", "title")),
    ("POST", "/", {}, "", (400, "invalid_field", "metadata")),
    ("POST", "/", {"metadata": {"": "x"}}, "", (400, "invalid_field", "metadata")),
    ("POST", "/", {"metadata": {}, "items": []}, "", (400, "invalid_field", "items")),
    ("GET", "/items", None, "limit=0", (400, "invalid_field", "limit")),
    ("GET", "/items", None, "limit=101", (400, "invalid_field", "limit")),
    ("GET", "/items", None, "limit=x", (400, "invalid_field", "limit")),
    ("GET", "/items", None, "order=up", (400, "invalid_field", "order")),
    ("GET", "/items", None, "after=x", (404, "item_not_found", "after")),
    ("GET", "/items", None, "after=msg_" + "A" * 22, (404, "item_not_found", "after")),
    ("GET", "/items", None, "include=x", (400, "invalid_field", "include")),
    (
        "GET",
        "/items",
        None,
        "include%5B%5D=message.output_text.logprobs",
        (400, "invalid_field", "include"),
    ),
    ("POST", "/items", {}, "", (400, "invalid_field", "items")),
    ("POST", "/items", {"items": []}, "", (400, "invalid_field", "items")),
    ("POST", "/items", {"items": [HELLO], "x": 1}, "", (400, "invalid_field", "x")),
    ("POST", "/items", {"items": [HELLO]}, "include=x", (400, "invalid_field", "include")),
    ("POST", "/items", {"items": [OUTPUT]}, "", (400, "invalid_field", "items[0].call_id")),
    ("GET", "/items/x", None, "", (404, "item_not_found", "item_id")),
    ("GET", "/items/x", None, "include=x", (400, "invalid_field", "include")),
    ("DELETE", "/items/msg_" + "A" * 22, None, "", (404, "item_not_found", "item_id")),
]


async def test_what_is_wrong_is_refused_by_its_name_and_nothing_is_kept(house: House) -> None:
    conversation = await house.made(HELLO)
    for method, path, body, query, refusal in FIELDS:
        whole = PATH if path == "" else f"{PATH}/{conversation}{path.removesuffix('/')}"
        found = await house.refused(method, whole, body, query)
        assert found == refusal, (method, path, body, query)
    assert len((await house.page(conversation))["data"]) == 1
    keys = await house.store.client.call("KEYS", house.store.keys.session("*", "m"))
    assert len(keys) == 1


async def test_what_no_item_here_has_may_be_included(house: House) -> None:
    conversation = await house.made(HELLO)
    for name in INCLUDABLE:
        for query in (f"include={name}&include={name}", f"include%5B%5D={name}"):
            (item,) = (await house.page(conversation, query))["data"]
            path = f"{PATH}/{conversation}/items/{item['id']}"
            assert (await house.ask("GET", path, query=query))[0] == 200


async def test_what_is_nobodys_conversation_is_not_found(house: House) -> None:
    bodies: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [HELLO]}),
        ("GET", "/items/msg_" + "A" * 22, None),
        ("DELETE", "/items/msg_" + "A" * 22, None),
    ]
    for conversation in (UNKNOWN, "conv_x", "ses_" + "A" * 22):
        for method, path, body in bodies:
            assert await house.refused(method, f"{PATH}/{conversation}{path}", body) == (
                404,
                "session_not_found",
                "conversation_id",
            )
