"""What can go wrong between us and an engine at an address, each as one line for a person."""

from engine.errors import one_line

REFUSING_STATUSES = (400, 413, 422)  # it will never take this request
BUSY_STATUSES = (429, 503)  # it may take the same request later


class RemoteProblem(Exception):
    """Something went wrong: `str` says what, in one printable line."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


class Unreachable(RemoteProblem):
    """It takes no connection: nobody is there, or its certificate is not to be trusted."""


class Broken(RemoteProblem):
    """A reply that ended before its end, or is no reply at all. The engine may be well."""


class Silent(RemoteProblem):
    """It has taken the request, and says nothing."""


class BadStatus(RemoteProblem):
    """It answers, with another status than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}" if message else f"status {status}")
        self.status = status
        self.message = one_line(message)

    @property
    def is_busy(self) -> bool:
        return self.status in BUSY_STATUSES

    @property
    def is_ours(self) -> bool:
        """Whether the request is to blame, however often it is sent."""
        return self.status in REFUSING_STATUSES


class Misfit(RemoteProblem):
    """It answers, and cannot be served: it is another kind of engine, or has another model."""


class Lie(RemoteProblem):
    """What it says of an answer cannot be true: nothing of it may be shown."""
