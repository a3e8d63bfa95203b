"""`Admin`: what operators may do to what is not theirs, and what they may see of it.

Each deed, and each look into a conversation, is in the audit log before it is done: what cannot be
noted does not happen. Titles and system prompts are words of users, too, and are shown to nobody
without the scope for transcripts.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from server.access.audit import Actor
from server.access.identities import BUILT_IN
from server.commands.delete_session import delete_session
from server.commands.services import Services
from server.protocol.objects import Reason
from server.runs.stop import Stop, cancel_command
from sessions.directory.credentials import Credentials
from sessions.directory.evictions import Evictions
from sessions.directory.finding.called import Called
from sessions.directory.groups import Groups
from sessions.directory.listing import ListedSession, Listing
from sessions.directory.notices import Notices
from sessions.directory.samples import Samples
from sessions.directory.users import Users
from sessions.model.errors import ResponseNotFound, RunEnded, SessionNotFound
from sessions.model.records import RunRecord, Session

STOPPED_REASON: Reason = "admin_cancelled"
END_SECONDS = 2.0  # for stopped answers; then the reply lists what is still running
POLL_SECONDS = 0.05
DELETIONS_AT_ONCE = 16  # of a deleted user's sessions
MOMENTS = ("created_at", "started_at", "first_token_at", "cancel_at", "aborted_at", "done_at")


class Admin:
    """One worker's. Methods raise the store's errors."""

    def __init__(self, services: Services) -> None:
        client, keys = services.store.client, services.store.keys
        self._services = services
        self._store = services.store
        self._evictions = Evictions(client, keys)
        self.auditor = services.auditor
        self.listing = Listing(client, keys)
        self.called = Called(client, keys)
        self.names = services.names
        self.users = Users(client, keys)
        store = services.store
        self.groups = Groups(client, keys, self.users, store.allowances, store.group_sessions)
        self.credentials = Credentials(client, keys)
        self.notices = Notices(client, keys)
        self.replicas = services.peers.replicas
        self.samples = Samples(client, keys)

    # ---- answers --------------------------------------------------------------------------------

    async def stop(self, session_id: str) -> list[RunRecord]:
        """Stop what runs and waits in a session, on whichever worker; how each of them stands.

        They have ended, unless their owner is silent.
        """
        await self._store.sessions.get(None, session_id)
        live = await self._store.responses.live(session_id)
        stopped = await asyncio.gather(*map(self._stop, reversed(live.ids)))
        return [record for record in stopped if record is not None]

    async def stop_all(self, uid: str) -> None:
        """Stop what runs and waits in all sessions of a user. What is queued there stays."""
        await asyncio.gather(*map(self._stop, await self._answers_of(uid)))

    async def count_all(self, uid: str) -> None:
        """Have what runs count in limits that are new for this user: there it was not counted."""
        limit = self._services.limits.max_active_responses_per_user
        for response_id in await self._answers_of(uid):
            await self._store.slots.renew(uid, response_id, limit)

    async def _answers_of(self, uid: str) -> list[str]:
        return [run.response_id for run in await self.listing.live_runs() if run.uid == uid]

    async def _stop(self, response_id: str) -> RunRecord | None:
        """Stop one answer and wait a while for its end; None if it is gone."""
        if (run := self._services.runs.local(response_id)) is not None:
            self._services.runs.stop(run, Stop("admin", STOPPED_REASON))
        with contextlib.suppress(ResponseNotFound, RunEnded):
            asked = await self._store.runs.request_cancel(
                None, response_id, by="admin", reason=STOPPED_REASON
            )
            await self._store.publish_control(asked.owner, cancel_command(response_id))
        try:
            return await self._await_end(response_id)
        except ResponseNotFound:
            return None

    async def _await_end(self, response_id: str) -> RunRecord:
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        while True:
            record = await self._store.runs.get(None, response_id)
            if not record.is_live or asyncio.get_running_loop().time() > deadline:
                return record
            await asyncio.sleep(POLL_SECONDS)

    # ---- sessions -------------------------------------------------------------------------------

    async def evict(self, session_id: str, reason: str, *, lock: bool) -> list[RunRecord]:
        """End a session's answers and send its viewers away, on every worker."""
        if lock:  # first, or a viewer could begin another answer in between
            await self._evictions.lock(session_id, reason)
        stopped = await self.stop(session_id)
        await self._evictions.evict(session_id, reason)
        return stopped

    async def unlock(self, session_id: str) -> None:
        await self._evictions.unlock(session_id)

    # ---- users ----------------------------------------------------------------------------------

    async def delete_user(self, uid: str) -> None:
        """Remove a user, their credentials and their sessions; may be repeated after a failure.

        Disabled first, so that nothing of theirs begins meanwhile. Raises `UserNotFound`.
        """
        await self.users.update(uid, disabled=True)
        await self.credentials.revoke_all(uid)
        for hidden in (False, True):
            while sessions := await self._some_sessions(uid, hidden=hidden):
                await asyncio.gather(*(self._delete_session(uid, one.id) for one in sessions))
        await self.users.forget(uid)

    async def _some_sessions(self, uid: str, *, hidden: bool) -> Sequence[Session]:
        page = await self._store.lists.page(uid, limit=DELETIONS_AT_ONCE, hidden=hidden)
        return page.sessions

    async def _delete_session(self, uid: str, session_id: str) -> None:
        with contextlib.suppress(SessionNotFound):  # its user was faster
            await delete_session(self._services, uid, session_id)

    # ---- how it is shown ------------------------------------------------------------------------

    def session_wire(self, listed: ListedSession, actor: Actor, now_ms: int) -> dict[str, Any]:
        """A row of the list."""
        built_in = BUILT_IN.get(listed.uid)
        name = listed.user_name or (built_in.name if built_in else None)
        state = "idle"
        if (run := listed.run) is not None:
            state = "stopping" if run.cancel else run.status
        return {
            "id": listed.id,
            "user": {"id": listed.uid, "name": name},
            "title": listed.title if actor.sees_transcripts else None,
            "model": listed.model or self._services.models.default.name,
            "state": state,
            "created_at": listed.created_at,
            "updated_at": listed.updated_at,
            "message_count": listed.message_count,
            "usage": {
                "input_tokens": listed.input_tokens,
                "output_tokens": listed.output_tokens,
            },
            "locked": listed.locked or None,
            "viewers": sum(listed.viewers.values()),
            "queued": listed.num_queued,
            "response": None
            if run is None
            else {
                "id": run.response_id,
                "status": run.status,
                "replica": run.owner,
                "fence": run.fence,
                "tokens": run.num_tokens,
                "tokens_per_s": run.tokens_per_s(now_ms),
                "age_ms": max(0, now_ms - run.created_at),
            },
        }


def timeline_wire(run: RunRecord) -> dict[str, Any]:
    """One answer's way, from its run: what happened when, by Redis' clock."""
    return {
        "id": run.response_id,
        "session_id": run.session_id,
        "message_id": run.message_id,
        "user": {"id": run.uid},
        "model": run.model,
        "status": run.status,
        "reason": run.reason or None,
        "engine": run.engine or None,
        "replica": run.owner,
        "fence": run.fence,
        "sequence_number": run.sequence_number,
        "tokens": run.num_tokens,
        "text_length": run.text_length,
        "stop": {"by": run.cancel_by, "reason": run.cancel_reason} if run.cancel else None,
        "timeline": {name: at for name in MOMENTS if (at := getattr(run, name)) is not None},
    }
