"""Stores a million sessions in a minute, for tests and benchmarks of the operators' list.

They are written as the scripts would leave them, without messages, at random times and by many
users; nothing is checked and nobody hears of it. Not in a cluster: one script writes many.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence

from sessions.connection.client import Argument
from sessions.store.store import SessionStore

BATCH = 1_000  # in one call
FIRST_MS = 1_700_000_000_000
SPAN_MS = 30 * 86_400_000
USERS = tuple(f"user{number}" for number in range(1_000))

STORE = """
for place = 1, #ARGV, 8 do
  local all, own, key, id, uid, number, at, messages = unpack(ARGV, place, place + 7)
  redis.call('ZADD', all, at, id)
  redis.call('ZADD', own, at, id)
  redis.call('HSET', key, 'uid', uid, 'title', 'Chat number ' .. number, 'model', 'parley-demo',
    'settings', '{}', 'revision', 3, 'created_at', at - 60000, 'updated_at', at, 'epoch', 'e',
    'offset', 9, 'head', '', 'message_count', messages, 'bytes', messages * 700,
    'input_tokens', 120, 'output_tokens', 480, 'active_response_id', '', 'pinned', 0, 'locked', '')
end
"""


async def store_many_sessions(
    store: SessionStore, num_sessions: int, seed: int, uids: Sequence[str] = USERS
) -> None:
    """Add so many sessions of these users, the same for the same seed."""
    ids = session_ids(seed)
    chance = random.Random(seed + 1)
    for start in range(0, num_sessions, BATCH):
        words: list[Argument] = []
        for number in range(start, min(start + BATCH, num_sessions)):
            session_id, uid = next(ids), chance.choice(uids)
            keys = store.keys
            words += (
                keys.all_sessions(session_id),
                keys.user_sessions(uid),
                keys.session(session_id, "m"),
                session_id,
                uid,
                number,
                FIRST_MS + chance.randrange(SPAN_MS),
                2 * chance.randrange(1, 100),
            )
        await store.client.call("EVAL", STORE, 0, *words)


def session_ids(seed: int) -> Iterator[str]:
    """The ids of these sessions, in the order of their numbers."""
    chance = random.Random(seed)
    while True:
        yield "ses_" + base64.urlsafe_b64encode(chance.randbytes(16)).rstrip(b"=").decode()
