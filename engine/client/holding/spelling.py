"""How the fields of a format are written."""

from engine.client.parsing.grammar import Field


def begin_of(field: Field) -> str | None:
    """What begins it; None if only a pattern says so, or nothing does."""
    if field.written is not None:
        return field.written[0]
    return field.begins.texts[0] if field.begins is not None and field.begins.texts else None


def end_of(field: Field) -> str | None:
    """What ends it; None if only a pattern says so, or nothing does."""
    if field.written is not None:
        return field.written[1]
    return field.ends.texts[0] if field.ends is not None and field.ends.texts else None
