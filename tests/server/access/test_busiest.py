"""Those who ask most are among a few, of one worker and of several."""

from server.access.busiest import Busiest, busiest, decoded, encoded, summed
from server.access.rates import ConnectionCounter
from server.config.limits import Limits


def test_the_few_that_ask_most_are_named_by_each_count() -> None:
    counter = ConnectionCounter(Limits())
    for number in range(100):
        for _ in range(number):
            assert counter.enter(f"user {number}", f"10.0.0.{number // 10}")
    found = busiest(counter, ["user 1"] * 7 + ["user 99"])
    assert [*found.users.items()][:1] == [("user 99", (99, 1))]
    assert found.users["user 1"] == (1, 7) and len(found.users) == 6
    assert next(iter(found.addresses)) == "10.0.0.9" and len(found.addresses) == 5
    assert len(encoded(found)) < 1000  # it is said twice a second


def test_what_several_workers_say_is_added_up_over_all_versions() -> None:
    one = Busiest({"ada": (2, 1)}, {"10.0.0.1": (3, 0)})
    other = Busiest({"ada": (1, 0), "bob": (1, 1)}, {})
    said = [decoded(figure) for figure in (encoded(one), encoded(other), None, "[1]", "x")]
    assert summed(said) == Busiest({"ada": (3, 1), "bob": (1, 1)}, {"10.0.0.1": (3, 0)})
