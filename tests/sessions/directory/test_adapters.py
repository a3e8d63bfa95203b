"""`AdapterBook`: which adapters are loaded, for all workers."""

from sessions.directory.adapters import Adapter, AdapterBook
from sessions.store.store import SessionStore


async def test_what_one_worker_loads_another_one_reads(
    store: SessionStore, other_store: SessionStore
) -> None:
    book, others = (AdapterBook(each.client, each.keys) for each in (store, other_store))
    poet, pirate = Adapter.load("poet", "ab", "admin"), Adapter.load("pirate", "cd", "admin")
    await book.put(poet)
    await book.put(pirate)
    assert await others.all() == {"pirate": pirate, "poet": poet}
    assert list(await others.all()) == ["pirate", "poet"]
    assert poet.number != pirate.number > 0


async def test_one_of_the_same_name_replaces_it_and_an_unloaded_one_is_gone(
    store: SessionStore,
) -> None:
    book = AdapterBook(store.client, store.keys)
    first, second = (Adapter.load("poet", content, "admin") for content in ("ab", "cd"))
    await book.put(first)
    await book.put(second)
    assert await book.all() == {"poet": second} and first.number != second.number
    assert await book.remove("poet") is True
    assert await book.remove("poet") is False
    assert await book.all() == {}
