"""`SteppedExecutor`: does what it was given when a test says so, one thing at a time."""

from collections import deque
from collections.abc import Callable


class SteppedExecutor:
    """In the place of an executor with one thread; `step` runs in the test's own."""

    def __init__(self) -> None:
        self.functions: deque[Callable[[], None]] = deque()

    def submit(self, function: Callable[[], None]) -> None:
        self.functions.append(function)

    def step(self) -> None:
        self.functions.popleft()()
