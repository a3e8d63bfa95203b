"""What the replies of the store say by themselves."""

import pytest

from sessions.model.replies import LiveResponses


@pytest.mark.parametrize(
    ("live", "ids"),
    [
        (LiveResponses(None, ()), []),
        (LiveResponses("a", ()), ["a"]),
        (LiveResponses(None, ("b",)), ["b"]),
        (LiveResponses("a", ("b", "c")), ["a", "b", "c"]),
    ],
)
def test_live_responses_are_the_active_one_and_then_the_queued(
    live: LiveResponses, ids: list[str]
) -> None:
    assert live.ids == ids
