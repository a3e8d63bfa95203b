"""`ThoughtTokens`: where the thoughts of an answer begin and end, in tokens."""

import msgspec


class ThoughtMarks(msgspec.Struct, frozen=True):
    """Of one kind of thoughts."""

    begin: list[int]  # these tokens in a row
    ends: list[int]  # each of these; the first one is what a thought is ended with


class ThoughtTokens(msgspec.Struct, frozen=True):
    """Of one answer. The engine's client makes it, for an answer that may think so much only."""

    kinds: list[ThoughtMarks]
    begun: int | None = None  # the kind that the prompt has begun
