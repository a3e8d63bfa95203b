"""Pages: many sorted sets read as one, newest first, with an end between members of one score."""

from __future__ import annotations

import random

import pytest

from sessions.indexes.pages import Place, cursor_of, newest_after, parse_cursor
from sessions.model.errors import InvalidCursor
from sessions.store.store import SessionStore


@pytest.mark.parametrize("num_keys", [1, 2, 64])
@pytest.mark.parametrize("num_scores", [1, 7, 1000])
async def test_pages_joined_are_everything_in_order(
    store: SessionStore, num_keys: int, num_scores: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    keys = [f"{store.keys.prefix}z{number}" for number in range(num_keys)]
    places = {(chance.randrange(num_scores), f"ses_{number:03}") for number in range(400)}
    await store.client.calls(
        *(("ZADD", chance.choice(keys), score, member) for score, member in places)
    )
    read: list[Place] = []
    position = None
    while page := await newest_after(store.client, keys, position, chance.randint(1, 60)):
        read += page
        position = parse_cursor(cursor_of(page[-1]))
    assert read == sorted(places, reverse=True)


async def test_a_page_of_nothing_is_empty(store: SessionStore) -> None:
    assert await newest_after(store.client, [f"{store.keys.prefix}none"], None, 50) == []
    assert await newest_after(store.client, [f"{store.keys.prefix}none"], None, 0) == []


@pytest.mark.parametrize("cursor", ["", ":", "1", "1:", "x:y", "-1:a", "1:a b", "1:{a}", "9" * 16])
def test_a_cursor_that_was_never_given_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        parse_cursor(cursor)
