"""Stores a million sessions in seconds, for tests and benchmarks of the operators' list.

They are written as the scripts would leave them, without messages, at random times and by many
users; nothing is checked and nobody hears of it.
"""

from __future__ import annotations

import base64
import random
from typing import Any

from sessions.store.store import SessionStore

BATCH = 500  # three commands each, within one timeout of a call on a busy machine
NUM_USERS = 1_000
FIRST_MS = 1_700_000_000_000
SPAN_MS = 30 * 86_400_000


async def store_many_sessions(
    store: SessionStore, num_sessions: int, seed: int, num_users: int = NUM_USERS
) -> None:
    """Add so many sessions of users `user0`, `user1` and so on, the same for the same seed."""
    chance = random.Random(seed)
    for start in range(0, num_sessions, BATCH):
        commands: list[Any] = []
        for number in range(start, min(start + BATCH, num_sessions)):
            commands += _session(store, chance, number, num_users)
        await store.client.calls(*commands)


def _session(
    store: SessionStore, chance: random.Random, number: int, num_users: int
) -> list[tuple[Any, ...]]:
    session_id = "ses_" + base64.urlsafe_b64encode(chance.randbytes(16)).rstrip(b"=").decode()
    uid = f"user{chance.randrange(num_users)}"
    updated_at = FIRST_MS + chance.randrange(SPAN_MS)
    # fmt: off
    fields = (
        "uid", uid, "title", f"Chat number {number}", "model", "parley-demo", "settings", "{}",
        "revision", 3, "created_at", updated_at - 60_000, "updated_at", updated_at,
        "epoch", "e", "offset", 9, "head", "", "message_count", 2, "input_tokens", 120,
        "output_tokens", 480, "active_response_id", "", "pinned", 0, "locked", "",
    )
    # fmt: on
    return [
        ("ZADD", store.keys.all_sessions(session_id), updated_at, session_id),
        ("ZADD", store.keys.user_sessions(uid), updated_at, session_id),
        ("HSET", store.keys.session(session_id, "m"), *fields),
    ]
