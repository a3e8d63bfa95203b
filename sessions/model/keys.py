"""Every key and channel that Parley uses in Redis, and every lifetime with its reason.

Braces are literal: they are the hash tag that keeps all keys of a session in one cluster slot, so
that one script may touch them together. Redis hashes the first `{…}` alone; ids hold no braces and
the prefix must not.
"""

from __future__ import annotations

import binascii
from typing import Final

SCHEMA: Final = "1"  # `sys` says which layout the data has; another number is refused at the start

# A reader that was away for longer gets a snapshot; a log pre-allocates 4 KiB, so not a day.
SESSION_LOG_MS: Final = 3_600_000
SESSION_LOG_ENTRIES: Final = 500  # more missed events than this are cheaper as a snapshot
# As long as a run of a deleted session could still write: leases end long before.
TOMBSTONE_MS: Final = 3_600_000
USED_TOKENS_MS: Final = 40 * 86_400_000  # so that the month can be looked back on
USER_KEY_MS: Final = 86_400_000  # an idempotency key, as those of responses
CHARGE_MS: Final = 600_000  # a call is repeated within seconds, or never
CALL_MS: Final = 60_000  # clients repeat what broke off within seconds
PART_MS: Final = 3_600_000  # of an import that never ends: its parts go by themselves
COPY_LEASE_MS: Final = 10_000  # between two parts: a call that is silent for longer is gone
PROBE_MS: Final = 10_000  # what a worker writes to see whether Redis takes writes
TICKET_SECONDS: Final = 30.0  # between POST /v1/ws-ticket and the upgrade; it stands in a URL
LOGIN_CODE_SECONDS: Final = 600.0  # from the printed URL to the browser; it stands in a URL too
COOKIE_IDLE_MS: Final = 12 * 3_600_000  # a browser that nobody uses is logged out
EXPIRED_TOKEN_MS: Final = 7 * 86_400_000  # so long its holder hears that it expired
RUN_SHARDS: Final = 64
# An index entry without its data is left alone that long: its data may be on the way.
INDEX_GRACE_MS: Final = 60_000


def shard_of(session_id: str) -> str:
    """The two hex digits of the index shard that holds this session and its runs."""
    return f"{binascii.crc_hqx(session_id.encode(), 0) % RUN_SHARDS:02x}"


SHARDS: Final = tuple(f"{number:02x}" for number in range(RUN_SHARDS))


class Keys:
    """Names under one prefix. Raises `ValueError` for a prefix with braces."""

    def __init__(self, prefix: str) -> None:
        if "{" in prefix or "}" in prefix:
            raise ValueError("a key prefix must not contain braces")
        self.prefix = prefix
        self.system = f"{prefix}sys"  # hash: schema, identity of the data, fingerprint
        self.replicas = f"{prefix}reps"  # zset: replica by its last sign of life
        self.system_channel = f"{prefix}sys:ctl"  # revocations, exited workers
        self.users = f"{prefix}users"  # zset: user id by created_at
        self.groups = f"{prefix}groups"  # zset: group id by created_at
        self.notice = f"{prefix}notice"  # string: what all users are shown, as long as it says
        self.shares = f"{prefix}shares"  # zset: session id by when its share link was made
        self.queues = f"{prefix}queues"  # zset: session id → when to look at its queue
        self.rounds = f"{prefix}rounds"  # the same for answers that follow calls of tools
        self.adapters = f"{prefix}adapters"  # hash: name → number, content hash, when, by whom
        self.audit = f"{prefix}adm:audit"  # stream: call, actor, action, target, reason, address
        self._live_start = f"{prefix}c:{{"
        self._live_end = "}:live"

    # ---- one session: every key in one slot ------------------------------------------------------

    def session(self, session_id: str, suffix: str) -> str:
        """One of a session's own keys, which live as long as it does unless said otherwise.

        `m` hash: the session's fields; `grant:` and a tool: it runs without asking. `msg` hash:
        message id -> JSON, zlib over 2 KiB; response id -> the same of a `KeptResponse`. `tree`
        list: `message_id parent_id` in order of creation. `ids` hash: message id -> token ids, for
        answers that do not tokenize back to them. `log` stream: session events, an hour idle. `q`
        list: waiting response ids. `runs` zset: response id -> when its keys expire. `share` hash:
        the snapshot that its share link shows. `copy` string: the call that writes its messages
        before it exists, ten seconds. `x` string: tombstone, an hour. `v` hash: worker -> `viewers
        counted_at`, a minute.
        """
        return f"{self.prefix}c:{{{session_id}}}:{suffix}"

    def session_base(self, session_id: str) -> str:
        """What `session` puts before the suffix."""
        return f"{self.prefix}c:{{{session_id}}}:"

    def idempotency(self, session_id: str, key: str) -> str:
        """String `response_id body_hash` for a day, or `cancelled` for ten seconds.

        Of an input in the queue `queued body_hash`, and `removed body_hash` when it was withdrawn.
        """
        return self.session(session_id, f"i:{key}")

    def run(self, session_id: str, response_id: str) -> str:
        """Hash of one run; ten minutes after its end, like its log and its token ids.

        `consent:` and the id of a call: what a user said of it, or that nobody did in time.
        """
        return self.session(session_id, f"r:{response_id}")

    def events(self, session_id: str, response_id: str) -> str:
        """Stream of a response's events, ids `sequence_number-0`, field `d`; never trimmed."""
        return self.session(session_id, f"e:{response_id}")

    def token_ids(self, session_id: str, response_id: str) -> str:
        """String of token ids, u32 little endian."""
        return self.session(session_id, f"tok:{response_id}")

    # ---- users, indexes, credentials -------------------------------------------------------------

    def user_sessions(self, uid: str) -> str:
        """Zset: session id by `updated_at`, of those that the user's lists show."""
        return f"{self.prefix}u:{{{uid}}}:s"

    def user_hidden_sessions(self, uid: str) -> str:
        """The same of those that no list shows. They count in the user's quota all the same."""
        return f"{self.prefix}u:{{{uid}}}:h"

    def user_tokens_used(self, uid: str, day: str) -> str:
        """Hash: tokens used on that day (`YYYYMMDD`); 40 days."""
        return f"{self.prefix}u:{{{uid}}}:q:{day}"

    def user_charge(self, uid: str, response_id: str) -> str:
        """String: this response's tokens were counted; ten minutes."""
        return f"{self.prefix}u:{{{uid}}}:qr:{response_id}"

    def user_slots(self, uid: str) -> str:
        """Zset: response id by when its slot expires, among the user's running answers."""
        return f"{self.prefix}u:{{{uid}}}:a"

    def user_record(self, uid: str) -> str:
        """Hash: name, roles, created_at, disabled; `group` and quotas of the user's own (`q_…`)."""
        return f"{self.prefix}u:{{{uid}}}:p"

    def user_key(self, uid: str) -> str:
        """Hash of a user who was made within a day: what was asked for, and the digest of the
        token that was given.
        """
        return f"{self.prefix}u:{{{uid}}}:i"

    def user_tokens(self, uid: str) -> str:
        """Zset: digest of a token or cookie by `expires_at`, +inf for those that never expire."""
        return f"{self.prefix}u:{{{uid}}}:t"

    def user_login_codes(self, uid: str) -> str:
        """Zset: digest of a login code by when it expires; as long as the newest of them."""
        return f"{self.prefix}u:{{{uid}}}:lc"

    def user_presets(self, uid: str) -> str:
        """Hash: name of a preset to its settings as JSON; "" to the name of the default one."""
        return f"{self.prefix}u:{{{uid}}}:ps"

    # ---- groups: every key of one in one slot ----------------------------------------------------

    def group_record(self, gid: str) -> str:
        """Hash: name, created_at, and the quotas that its members share."""
        return f"{self.prefix}g:{{{gid}}}:p"

    def group_members(self, gid: str) -> str:
        """Zset: user id by when they came. An index: whose group it is, the users' records say."""
        return f"{self.prefix}g:{{{gid}}}:m"

    def group_tokens(self, gid: str) -> str:
        """Hash: `t:DAY` used, `h:DAY` held for answers that run, `r:` and a response id: `day held
        since`; days are `YYYYMMDD`, forty of them.
        """
        return f"{self.prefix}g:{{{gid}}}:q"

    def group_slots(self, gid: str) -> str:
        """Zset: response id by when its slot expires, among the group's running answers."""
        return f"{self.prefix}g:{{{gid}}}:a"

    def group_sessions(self, gid: str) -> str:
        """Zset: session id by `updated_at`, of all members: what the quota counts."""
        return f"{self.prefix}g:{{{gid}}}:s"

    # ---- all sessions, runs, workers, credentials ------------------------------------------------

    def all_sessions(self, session_id: str) -> str:
        """This session's shard of all sessions."""
        return self.sessions_shard(shard_of(session_id))

    def sessions_shard(self, shard: str) -> str:
        """Zset: session id by `updated_at`."""
        return f"{self.prefix}a:s:{{{shard}}}"

    def live_runs(self, shard: str) -> str:
        """Zset: response id by `lease_until`: the live list and the reaper's index in one."""
        return f"{self.prefix}a:run:{{{shard}}}"

    def samples(self, span: str) -> str:
        """Zset: what a worker measured, by when; as long as the span."""
        return f"{self.prefix}adm:stats:{span}"

    def replica(self, replica: str) -> str:
        """Hash: what a worker says of itself; some heartbeats long."""
        return f"{self.prefix}rep:{{{replica}}}"

    def token(self, digest: str) -> str:
        """Hash of a token or cookie, by SHA-256: its `Credential`."""
        return f"{self.prefix}tk:{digest}"

    def ticket(self, digest: str) -> str:
        """String: a websocket ticket, read once."""
        return f"{self.prefix}t:{digest}"

    def login_code(self, digest: str) -> str:
        """String: a login code, taken once."""
        return f"{self.prefix}lc:{digest}"

    # ---- calls that nothing is stored of ---------------------------------------------------------

    def left_calls(self, name: str) -> str:
        """List: `replica call_id` of calls whose clients left before their answers; a minute."""
        return f"{self.prefix}call:l:{name}"

    def keyed_call(self, name: str) -> str:
        """Hash: which call answers an idempotency key; a minute after its end."""
        return f"{self.prefix}call:k:{name}"

    # ---- channels --------------------------------------------------------------------------------

    def session_channel(self, session_id: str) -> str:
        """Where the scripts publish a session's events and its responses' entries."""
        return f"{self._live_start}{session_id}{self._live_end}"

    def user_channel(self, uid: str) -> str:
        """Frames for every connection of one user, for the sidebar."""
        return f"{self.prefix}u:{{{uid}}}:live"

    def control_channel(self, replica: str) -> str:
        """Commands to one worker."""
        return f"{self.prefix}rep:{{{replica}}}:ctl"

    def relay_channel(self, name: str) -> str:
        """An answer that another worker has."""
        return f"{self.prefix}call:{name}"

    def probe_channel(self, name: str) -> str:
        """Where a worker listens for its own probe."""
        return f"{self.prefix}probe:{name}"

    def session_of_channel(self, channel: str) -> str | None:
        """The session id of a session channel, None for any other."""
        if not (channel.startswith(self._live_start) and channel.endswith(self._live_end)):
            return None
        return channel[len(self._live_start) : -len(self._live_end)]
