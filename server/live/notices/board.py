"""`NoticeBoard`: shows everybody who is connected here what an admin has to say to all users.

It is read again when a worker says that it has changed, and every few seconds, since such a message
may be lost.
"""

import asyncio
import contextlib
import time

from server.live.hub import Hub
from server.protocol.objects import NoticeObject
from server.protocol.server_frames import NoticeUpdated
from sessions.directory.notices import Notice, Notices
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame, LivePayload

READ_SECONDS = 5.0


class NoticeBoard:
    """Of one worker."""

    def __init__(self, notices: Notices, hub: Hub) -> None:
        self._notices = notices
        self._hub = hub
        self._shown: Notice | None = None
        self._changed = asyncio.Event()

    @property
    def frame(self) -> NoticeUpdated | None:
        """For a connection that begins; None if there is nothing to say."""
        notice = self._shown
        if notice is None or notice.until <= time.time() * 1000:
            return None
        return notice_frame(notice)

    def on_announcement(self, payload: LivePayload) -> None:
        """A message to all workers says that there is another one, or none."""
        if isinstance(payload, LiveFrame) and payload.data.get("type") == "notice":
            self._changed.set()

    async def watch_forever(self) -> None:
        """Read it at once on notice, else every few seconds."""
        while True:
            self._changed.clear()
            with contextlib.suppress(StoreUnavailable):
                await self.read()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    await self._changed.wait()

    async def read(self) -> None:
        """Tell every connection if it has changed."""
        notice = await self._notices.current()
        if notice != self._shown:
            self._shown = notice
            self._hub.broadcast(notice_frame(notice))


def notice_frame(notice: Notice | None) -> NoticeUpdated:
    """None: there is nothing to be shown any more."""
    return NoticeUpdated(notice=None if notice is None else NoticeObject(**notice.wire()))
