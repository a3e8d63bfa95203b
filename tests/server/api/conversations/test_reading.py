"""Pages of items: every item once, in both orders, on pages of any length."""

from itertools import product

import pytest

from server.api.conversations import reading
from tests.server.api.conversations.house import GOOD, HELLO, House, session_of

CALLS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    GOOD,
    *({"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in "ab"),
    *({"type": "function_call_output", "call_id": f"c{n}", "output": "x"} for n in "ab"),
]


async def test_pages_that_follow_each_other_hold_every_item_once(house: House) -> None:
    conversation = await house.made(HELLO, *CALLS, GOOD, HELLO, *CALLS)
    everything = (await house.page(conversation, "order=asc&limit=100"))["data"]
    assert len(everything) == 15
    for order, limit in product(("asc", "desc"), (1, 2, 3, 5, 100)):
        found: list[object] = []
        after, has_more = "", True
        while has_more:
            page = await house.page(conversation, f"order={order}&limit={limit}{after}")
            found += page["data"]
            assert page["first_id"] == page["data"][0]["id"]
            has_more, after = page["has_more"], f"&after={page['last_id']}"
            assert len(page["data"]) == limit or not has_more
        assert found == (everything if order == "asc" else everything[::-1])


async def test_the_newest_twenty_come_if_nothing_is_said(house: House) -> None:
    conversation = await house.made(*[HELLO, GOOD] * 15)
    page = await house.page(conversation)
    everything = (await house.page(conversation, "limit=100"))["data"]
    assert (page["data"], page["has_more"]) == (everything[:20], True)


async def test_after_the_last_item_there_is_nothing(house: House) -> None:
    conversation = await house.made(HELLO)
    only = (await house.page(conversation))["last_id"]
    page = await house.page(conversation, f"after={only}")
    assert page == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


async def test_a_page_of_long_items_ends_earlier_and_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_PAGE_BYTES", 5000)
    long = {"role": "user", "content": "x" * 4000}
    conversation = await house.made(long, long, long)
    first = await house.page(conversation)
    assert (len(first["data"]), first["has_more"]) == (2, True)
    rest = await house.page(conversation, f"after={first['last_id']}")
    assert (len(rest["data"]), rest["has_more"]) == (1, False)


async def test_outcomes_of_the_servers_calls_appear_once_also_at_the_edge_of_a_page(
    house: House,
) -> None:
    conversation = await house.made(HELLO, *CALLS, GOOD)
    session_id = session_of(conversation)
    branch = await house.store.messages.branch("local", session_id)
    message, version = await house.store.messages.with_version("local", session_id, branch[1])
    outcome = {
        "type": "function_call_output",
        "id": "fco",
        "call_id": "ca",
        "name": "f",
        "server_label": "s",
        "output": "x",
        "status": "completed",
    }
    object.__setattr__(message, "tool_outputs", [outcome])
    await house.store.messages.replace("local", session_id, message, version)
    newest = await house.page(conversation, "limit=2")
    assert [item["type"] for item in newest["data"]] == ["message", "function_call_output"]
    assert newest["data"][1]["call_id"] == "cb"
    rest = await house.page(conversation, f"limit=2&after={newest['last_id']}")
    assert [item["type"] for item in rest["data"]] == ["function_call", "mcp_call"]
    call = rest["data"][1]["id"]
    await house.ask("DELETE", f"/v1/conversations/{conversation}/items/{call}")
    outputs = await house.store.messages.get("local", session_id, branch[2])
    assert [each["output"] for each in outputs.outputs or ()] == ["", "x"]
