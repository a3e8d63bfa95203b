"""The list of looks and the folder of references name the same pictures."""

from tests.end_to_end.looks.pictures import REFERENCES, reference_of
from tests.end_to_end.looks.test_looks import LOOKS, STATES


def test_each_look_has_its_reference_and_each_reference_its_look() -> None:
    named = {reference_of(look).name for look in LOOKS}
    kept = {path.name for path in REFERENCES.iterdir()}
    assert (named - kept, kept - named) == (set(), set())


def test_each_look_is_of_a_known_state_and_listed_once() -> None:
    assert len(set(LOOKS)) == len(LOOKS)
    assert {look.split()[0] for look in LOOKS} <= STATES.keys()
