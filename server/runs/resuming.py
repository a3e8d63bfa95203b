"""What a dead worker's tokens say beyond what it had stored of the answer."""

from collections.abc import Sequence

from server.engines.client import ParsedArguments, ParsedBegin
from server.generation.answers import Part, Said
from server.protocol.calls import Call


def unsaid(
    parts: Sequence[Said], text: str, reasoning: str, calls: Sequence[Call]
) -> list[Said] | None:
    """The parts without what is stored: text, thoughts, and what the log tells of calls.

    None if the tokens say something else than that: then nobody can go on with the answer.
    """
    left = {False: text, True: reasoning}
    left_of_calls = [call.arguments for call in calls]
    num_begun = 0
    rest: list[Said] = []
    for part in parts:
        if isinstance(part, Part):
            more = _beyond(left[part.is_reasoning], part.text)
            if more is None:
                return None
            left[part.is_reasoning], beyond = more
            if beyond:
                rest.append(Part(beyond, part.is_reasoning))
        elif isinstance(part, ParsedBegin):
            num_begun += 1
            if part.index >= len(calls):
                rest.append(part)
            elif part.name != calls[part.index].name:
                return None
        elif part.index >= len(calls):
            rest.append(part)
        elif isinstance(part, ParsedArguments):
            more = _beyond(left_of_calls[part.index], part.delta)
            if more is None:
                return None
            left_of_calls[part.index], beyond = more
            if beyond:
                rest.append(ParsedArguments(part.index, beyond))
        elif not calls[part.index].is_done:
            rest.append(part)  # of what says so, that which is not stored follows
    is_all_said = not (any(left.values()) or any(left_of_calls)) and num_begun >= len(calls)
    return rest if is_all_said else None


def _beyond(left: str, said: str) -> tuple[str, str] | None:
    """What must still be said of the one, and what the other says beyond it."""
    length = min(len(left), len(said))
    if left[:length] != said[:length]:
        return None
    return left[length:], said[length:]
