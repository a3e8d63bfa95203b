"""Sessions of many turns: opening one costs what its newest page costs."""

import json
import time

import pytest

from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Client, Server


@pytest.mark.row("B37")
@pytest.mark.parametrize("num_turns", [500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_session_of_many_turns_opens_with_its_newest_page(
    server: Server, num_turns: int
) -> None:
    messages = [
        {
            "id": str(number),
            "role": "assistant" if number % 2 else "user",
            "parent_id": str(number - 1) if number else None,
            "content": [{"type": "text", "text": f"message {number}"}],
        }
        for number in range(2 * num_turns)
    ]
    file = {"format": "parley.session", "version": 1, "messages": messages}
    async with Http(server) as http, Client(server) as client:
        session_id = (await http.post("/v1/sessions/import", file)).json()["id"]
        times = []
        for _ in range(5):
            began = time.monotonic()
            opened = await client.reply("session.subscribe", session_id=session_id)
            times.append(time.monotonic() - began)
        print(f"a session of {num_turns:,} turns opens in {min(times) * 1000:.0f} ms")
        snapshot = opened["snapshot"]
        texts = [message["content"][0]["text"] for message in snapshot["messages"]]
        assert texts == [f"message {n}" for n in range(2 * num_turns - 50, 2 * num_turns)]
        assert snapshot["has_more"] is True
        assert len(json.dumps(opened)) <= 192 * 1024
        assert min(times) <= 0.3
        await http.ask("DELETE", f"/v1/sessions/{session_id}")
