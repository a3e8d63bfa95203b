"""`Straight`: a way to a reader that takes what is new in the very call that brings it.

No task wakes for it. It may be closed at any moment, because a socket is full or something else
has to be sent; then what is new waits for the reader's task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Straight(Generic[T]):
    """`put` is called only while it `is_open`."""

    is_open: Callable[[], bool]
    put: Callable[[Sequence[T]], None]

    def after(self, translate: Callable[[Sequence[S]], Sequence[T]]) -> "Straight[S]":
        """The same way for who has something else, which is made into that."""
        return Straight(self.is_open, lambda new: self.put(translate(new)))


def closed() -> Straight[Any]:
    """For a reader whom only its task serves."""
    return Straight(lambda: False, lambda new: None)
