"""`Writer`: frames leave in order, no faster than their reader takes them.

The stream of an answer waits here while the socket is full, and reads on in the log afterwards:
so a slow reader costs nothing but its own time. One that takes nothing at all is given up.
"""

import asyncio
from collections.abc import Callable, Sequence

from server.api.websocket.wire import SEND_SECONDS, Wire

FRAMES_PER_TURN = 16  # then others have their turn


class Writer:
    """Of one connection. `give_up` is called when the socket takes nothing any more."""

    def __init__(self, wire: Wire, give_up: Callable[[], None]) -> None:
        self._wire = wire
        self._give_up = give_up
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def send(self, frames: Sequence[bytes]) -> None:
        """Return when all of them have left. No other's come between them."""
        async with self._turn:
            for number, frame in enumerate(frames, 1):
                while not self._wire.write_frame(frame):
                    await self._room()
                if number % FRAMES_PER_TURN == 0:
                    await asyncio.sleep(0)

    def is_open(self) -> bool:
        """Whether `write` may be called: nobody waits for room, and there is some."""
        return not (self._is_closed or self._turn.locked()) and self._wire.can_write

    def close(self) -> None:
        """The connection ends, and with it the tasks that send: nothing leaves without one."""
        self._is_closed = True

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames in this very call."""
        self._wire.write_frames(frames)

    async def _room(self) -> None:
        """Wait until the socket takes more; for ever, once the connection has to end."""
        room = asyncio.Event()
        self._wire.on_room = room.set
        while not room.is_set():
            num_unsent = self._num_unsent
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await room.wait()
            except TimeoutError:
                if self._num_unsent >= num_unsent:
                    self._give_up()
                    await asyncio.Event().wait()

    @property
    def _num_unsent(self) -> int:
        return self._wire.transport.get_write_buffer_size()
