"""`Ear`: a subscription by which one who stops an answer hears its end, with or without viewers."""

from collections.abc import Sequence

from server.live.response_log import is_done
from server.live.subscription import Subscription, Watcher
from sessions.model.events import Event
from sessions.model.ids import session_of


class Ear(Subscription):
    """What is published of one answer, heard from `listen` on; its end also if that came before.

    The end may overtake the store's reply to the stop that brings it.
    """

    def __init__(self, watcher: Watcher, response_id: str) -> None:
        self._heard: set[str] = set()
        super().__init__(watcher, session_of(response_id), self._heard, is_viewer=False)
        self._response_id = response_id
        self._early: tuple[int, int, Sequence[Event]] | None = None
        self.end_join(0)

    def hears(self, response_id: str) -> bool:
        return response_id == self._response_id

    def put_events(
        self,
        response_id: str,
        fence: int,
        first: int,
        events: Sequence[Event],
        frame: bytes | None = None,
    ) -> bool:
        if self.wants(response_id):
            return super().put_events(response_id, fence, first, events, frame)
        if is_done(events[-1]):
            self._early = fence, first, events
        return True

    def listen(self) -> None:
        """From now on tell what is heard. What the connection has stopped must be known by now."""
        self._heard.add(self._response_id)
        if self._early is not None:
            self.put_events(self._response_id, *self._early)
