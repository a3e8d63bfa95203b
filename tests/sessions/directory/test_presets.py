"""`PresetBook`: settings under names, for one user, on all workers."""

import pytest

from sessions.directory.presets import MAX_PRESETS, PresetBook, PresetList
from sessions.directory.users import Users
from sessions.model.errors import QuotaExceeded
from sessions.store.store import SessionStore


@pytest.fixture
def book(store: SessionStore) -> PresetBook:
    return PresetBook(store.client, store.keys)


async def test_presets_are_kept_by_name_and_none_is_anothers(book: PresetBook) -> None:
    assert await book.of_user("alice") == PresetList({}, None)
    await book.put("alice", "warm", {"temperature": 1.0})
    await book.put("alice", "Cold", {"temperature": 0}, is_default=True)
    await book.put("alice", "warm", {"temperature": 1.2})
    found = await book.of_user("alice")
    assert list(found.settings) == ["Cold", "warm"]
    assert found.settings["warm"] == {"temperature": 1.2} and found.default == "Cold"
    assert await book.of_user("bob") == PresetList({}, None)


async def test_one_at_most_is_the_default(book: PresetBook) -> None:
    for name in ("a", "b"):
        await book.put("alice", name, {}, is_default=True)
    assert (await book.of_user("alice")).default == "b"
    await book.put("alice", "b", {})
    assert (await book.of_user("alice")).default is None
    await book.put("alice", "b", {}, is_default=True)
    assert await book.remove("alice", "b") is True
    assert await book.of_user("alice") == PresetList({"a": {}}, None)
    await book.put("alice", "b", {})  # another one of that name
    assert (await book.of_user("alice")).default is None
    assert await book.remove("alice", "b") is True
    assert await book.remove("alice", "b") is False
    assert await book.remove("alice", "") is False


async def test_one_preset_too_many_is_refused_and_a_known_one_replaced(book: PresetBook) -> None:
    for number in range(MAX_PRESETS):
        await book.put("alice", f"{number}", {})
    with pytest.raises(QuotaExceeded):
        await book.put("alice", "more", {})
    await book.put("alice", "7", {"seed": 7})
    assert (await book.of_user("alice")).settings["7"] == {"seed": 7}


async def test_a_user_who_is_forgotten_leaves_no_preset(
    book: PresetBook, store: SessionStore
) -> None:
    await book.put("alice", "warm", {})
    await Users(store.client, store.keys).forget("alice")
    assert await book.of_user("alice") == PresetList({}, None)
