"""`ThoughtTokens`: where the thoughts of an answer begin and end, in tokens."""

import msgspec

from engine.errors import refuse


class ThoughtMarks(msgspec.Struct, frozen=True):
    """Of one kind of thoughts. A wrong value raises `ValidationError`."""

    begin: list[int]  # these tokens in a row
    ends: list[int]  # each of these; the first one is what a thought is ended with

    def __post_init__(self) -> None:
        if not (self.begin and self.ends):
            raise refuse("thought_tokens", self, "must begin and end with tokens")


class ThoughtTokens(msgspec.Struct, frozen=True):
    """Of one answer. The engine's client makes it, for an answer that may think so much only."""

    kinds: list[ThoughtMarks]
    begun: int | None = None  # the kind that the prompt has begun

    def __post_init__(self) -> None:
        if self.begun is not None and not 0 <= self.begun < len(self.kinds):
            raise refuse("thought_tokens.begun", self.begun, "must be one of the kinds")
