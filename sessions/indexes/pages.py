"""Pages of sorted sets, of one, or of many merged into one order.

A place is `(score, member)`; members of one score are ordered by themselves, so a page may end
between them and the next one begins after its last place.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.errors import InvalidCursor

Place = tuple[int, str]

_CURSOR: Final = re.compile(r"(\d{1,15}):([A-Za-z0-9_.@-]{1,128})\Z")


async def newest_after(
    client: RedisClient,
    keys: Sequence[str],
    position: Place | None,
    count: int,
    *,
    oldest_first: bool = False,
) -> list[Place]:
    """Up to `count` places of these zsets after `position`, newest first unless said otherwise.

    Asks each zset for its share and then only those for more that could still change the result.
    """
    first, end = ("-inf", "+inf") if oldest_first else ("+inf", "-inf")
    order = [] if oldest_first else ["REV"]
    is_after = operator.gt if oldest_first else operator.lt
    share = max(1, min(count, 4 + 2 * count // len(keys))) if count > 0 else 0
    begin = first if position is None else position[0]
    found: set[Place] = set()
    offset = 0  # the same for all that are asked again: each gave its whole share
    pending = list(keys) if share else []
    page: list[Place] = []
    while pending:
        # fmt: off
        replies = await client.read_each(
            pending, "ZRANGE", begin, end,
            "BYSCORE", *order, "LIMIT", offset, share, "WITHSCORES",
        )
        # fmt: on
        offset += share
        lasts: dict[str, Place] = {}
        for key, entries in zip(pending, replies, strict=True):
            places = [
                (int(score), member.decode())
                for member, score in zip(entries[::2], entries[1::2], strict=True)
            ]
            found.update(place for place in places if position is None or is_after(place, position))
            if len(places) == share:
                lasts[key] = places[-1]
        page = sorted(found, reverse=not oldest_first)[:count]
        is_full = len(page) == count
        pending = [key for key, last in lasts.items() if not is_full or is_after(page[-1], last)]
    return page


def parse_cursor(cursor: str | None) -> Place | None:
    """The place that a page ended at. Raises `InvalidCursor`."""
    if cursor is None:
        return None
    match = _CURSOR.match(cursor)
    if match is None:
        raise InvalidCursor("malformed cursor")
    return int(match[1]), match[2]


def cursor_of(place: Place) -> str:
    """What `parse_cursor` reads."""
    return f"{place[0]}:{place[1]}"
