"""What should not be stored is found."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.oracle.planted_histories import CREATE, RESPONSE, TEXT, WHOLE, WORDS, World

pytestmark = pytest.mark.slow


def lose_a_message(world: World) -> None:
    del world.session.messages["msg_2"]


def change_the_question(world: World) -> None:
    world.session.messages["msg_1"]["content"][0]["text"] = "another"


def cut_the_text(world: World) -> None:
    world.session.messages["msg_2"]["content"][0]["text"] = TEXT[:-7]


def double_a_word_everywhere(world: World) -> None:
    world.run.events[3] = (4, ["t", 14, WORDS[1]])
    world.session.messages["msg_2"]["content"][0]["text"] = "".join(w for _, _, w in texts(world))


def texts(world: World) -> Iterator[Any]:
    return (event for _, event in world.run.events if isinstance(event, list))


def lose_an_entry(world: World) -> None:
    del world.run.events[2]


def end_twice(world: World) -> None:
    world.run.events[4] = (5, {"type": "response.done"})


def stay_live(world: World) -> None:
    world.run.fields["status"] = "in_progress"


def stay_active(world: World) -> None:
    world.session.fields["active_response_id"] = RESPONSE


def stay_in_the_index(world: World) -> None:
    world.stored.live_index.add(RESPONSE)


def never_expire(world: World) -> None:
    world.run.expiries["e"] = -1


def leave_the_index(world: World) -> None:
    world.stored.all_sessions.clear()


def outlive_the_delete(world: World) -> None:
    world.session.fields = {}


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lose_a_message, "I4"),
        (change_the_question, "I4"),
        (cut_the_text, "I1"),
        (double_a_word_everywhere, "the model counts"),
        (lose_an_entry, "I2 log"),
        (end_twice, "I3 completed, with response.done at [5, 6]"),
        (stay_live, "I3 in_progress, with a lease that ended"),
        (stay_active, "I3 live runs"),
        (stay_in_the_index, "I7 in the index"),
        (never_expire, "I7 key e"),
        (leave_the_index, "I7 not among all sessions"),
        (outlive_the_delete, "I7 of the deleted session"),
    ],
)
def test_what_should_not_be_stored_is_found(
    world: World, plant: Callable[[World], None], found: str
) -> None:
    world.play(CREATE, *WHOLE)
    plant(world)
    assert found in world.finds()
