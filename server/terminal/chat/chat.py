"""`Chat`: a session over a connection that comes back. Both faces of `parley chat` stand on it."""

import asyncio
import time
from collections.abc import Callable

from server.terminal.admin_client import AdminError, UserClient
from server.terminal.chat.link import Address, Link
from server.terminal.chat.state.client import Ask, ChatClient
from server.terminal.chat.state.run import Frame
from sessions.background import start

REFETCH_SECONDS = 1.0


class Chat:
    """One connection, and one session at a time."""

    def __init__(
        self,
        address: Address,
        session_id: str | None,
        *,
        on_change: Callable[[], None],
        on_note: Callable[[str], None],
        on_refused: Callable[[Ask, str], None],
    ) -> None:
        self.address = address
        self._on_change, self._on_note, self._on_refused = on_change, on_note, on_refused
        self._refetching: asyncio.Task[None] | None = None
        self.link = Link(address, on_open=self._opened, on_frame=self._received, on_lost=self._lost)
        self.client = self._new_client(session_id)

    async def run(self) -> int:
        """Until the server closes the connection for good. Returns the code of that close."""
        return await self.link.run()

    @property
    def user_client(self) -> UserClient:
        return UserClient(*self.address())

    def begin_anew(self) -> None:
        """Leave the session; the next question begins another."""
        if (conversation := self.client.conversation) is not None:
            self.link.send({"type": "session.unsubscribe", "session_id": conversation.id})
        self.client = self._new_client(None)
        if self.link.is_open:
            self.client.connected()

    def lost_seconds(self) -> float:
        """How long there has been no connection."""
        return 0.0 if self.link.lost_at is None else time.monotonic() - self.link.lost_at

    def _new_client(self, session_id: str | None) -> ChatClient:
        return ChatClient(
            self.link.send,
            session_id=session_id,
            later=lambda seconds, act: asyncio.get_running_loop().call_later(seconds, act),
            refetch=self._refetch,
            on_change=self._on_change,
            on_note=self._on_note,
            on_refused=self._on_refused,
        )

    def _opened(self) -> None:
        self.client.connected()
        self._on_change()

    def _received(self, frame: Frame) -> None:
        self.client.receive(frame)

    def _lost(self) -> None:
        self.client.lost()
        self._on_change()

    def _refetch(self, session_id: str) -> None:
        if self._refetching is None or self._refetching.done():
            self._refetching = start(self._read_stored(session_id))

    async def _read_stored(self, session_id: str) -> None:
        """Read the messages until no text is missing, or another session is shown."""
        while True:
            client = self.client
            if client.conversation is None or client.conversation.id != session_id:
                return
            try:
                client.settle(await asyncio.to_thread(self.user_client.messages, session_id))
            except AdminError:
                pass  # it is asked again
            if not any(one.is_incomplete and not one.is_streaming for one in client.path):
                return
            await asyncio.sleep(REFETCH_SECONDS)
