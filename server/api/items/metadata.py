"""What a client notes of something, as OpenAI bounds it: sixteen pairs of short texts."""

from typing import Annotated, Final

from msgspec import Meta

from server.protocol.errors import invalid_field

MAX_PAIRS: Final = 16
MAX_NAME_CHARACTERS: Final = 64
MAX_VALUE_CHARACTERS: Final = 512
Metadata = dict[str, Annotated[str, Meta(max_length=MAX_VALUE_CHARACTERS)]]


def check_metadata(metadata: Metadata | None) -> dict[str, str]:
    """As it is stored; empty for None. Raises `ApiError`. Types and values are checked before."""
    given = metadata or {}
    if len(given) > MAX_PAIRS:
        raise invalid_field("metadata", f"metadata has more than {MAX_PAIRS} pairs")
    if any(not 0 < len(name) <= MAX_NAME_CHARACTERS for name in given):
        problem = f"a name in metadata has 1 to {MAX_NAME_CHARACTERS} characters"
        raise invalid_field("metadata", problem)
    return given
