"""Where a session's keys and values are: with the engine that wrote its last answer."""

from tests.server.helpers.scripted_links import Site


async def test_an_answer_goes_where_another_worker_says_that_the_last_one_was(site: Site) -> None:
    for number, name in enumerate("abab"):
        site.group.know_place("session", name)
        reader = site.read(f"r{number}", session_id="session")
        await site.settle()
        assert site.place_of(f"r{number}") == site.group.place_of("session") == name
        site.at(f"r{number}")[0].emit(f"r{number}", 1, finish_reason="stop")
        await reader.task


async def test_the_place_of_an_answer_that_has_moved_is_where_it_went(site: Site) -> None:
    site.read("r", session_id="session")
    await site.settle()
    left, other = site.place_of("r"), site.at("r")
    other[0].die()
    await site.settle()
    assert site.group.place_of("session") == site.place_of("r") != left


async def test_an_engine_that_is_none_any_more_is_no_place(site: Site) -> None:
    site.group.know_place("session", "gone")
    assert site.group.place_of("session") is None
