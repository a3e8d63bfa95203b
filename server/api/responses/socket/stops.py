"""`Stops`: the stops of one answer, as a websocket of chat.v1 would ask for them."""

from server.api.rest.event_stream import HttpViewer
from server.commands.cancel_response import Canceller
from server.commands.services import Services
from server.protocol.client_frames import CancelResponse
from server.protocol.errors import ApiError
from sessions.background import Background
from sessions.model.errors import SessionError


class Stops:
    """The answer's own events say what comes of them, so nobody reads what is said here."""

    def __init__(self, services: Services, uid: str) -> None:
        self._viewer = HttpViewer(uid)
        self._canceller = Canceller(self._viewer, services, {})
        self._background = Background(ApiError, SessionError)

    def stop(self, response_id: str) -> None:
        """At once, of an answer that this worker produces."""
        frame = CancelResponse(response_id=response_id)
        asked = self._viewer.sent_ends.ask()
        self._canceller.close_gates(frame, asked)
        self._background.spawn(self._canceller.cancel(frame, asked))

    def close(self) -> None:
        """The answer has ended, or nobody listens: what was stopped stays stopped."""
        self._background.cancel()
        self._canceller.close()
