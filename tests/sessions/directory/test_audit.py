"""The audit log: written once, read newest first."""

from __future__ import annotations

import pytest

from sessions.directory import audit as module
from sessions.directory.audit import AuditFilter, AuditLog
from sessions.model.errors import InvalidCursor
from sessions.store.store import SessionStore


@pytest.fixture
def audit(store: SessionStore) -> AuditLog:
    return AuditLog(store.client, store.keys)


async def test_an_entry_says_who_did_what_to_whom_why_and_from_where(audit: AuditLog) -> None:
    await audit.write(
        actor="usr_a", action="session.stop", target="ses_b", reason="spam", address="10.0.0.1"
    )
    (entry,) = (await audit.page()).entries
    assert (entry.actor, entry.action, entry.target) == ("usr_a", "session.stop", "ses_b")
    assert (entry.reason, entry.address) == ("spam", "10.0.0.1")
    assert entry.id.startswith(str(entry.at))


async def test_entries_are_read_newest_first_page_by_page(audit: AuditLog) -> None:
    for number in range(7):
        await audit.write(actor="a", action=str(number))
    read: list[str] = []
    cursor = None
    while True:
        page = await audit.page(3, cursor)
        read += [entry.action for entry in page.entries]
        if (cursor := page.next_cursor) is None:
            break
    assert read == [str(number) for number in reversed(range(7))]


@pytest.mark.parametrize("cursor", ["", "x", "1", "(1-1", "+", "1-1 COUNT"])
async def test_a_cursor_that_was_never_given_is_refused(audit: AuditLog, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        await audit.page(3, cursor)


async def test_a_repeat_after_a_lost_reply_adds_nothing(
    audit: AuditLog, store: SessionStore
) -> None:
    pairs = ("actor", "a", "action", "b", "target", "", "reason", "", "address", "")

    async def append() -> None:
        await store.client.script(
            "append_audit", [store.keys.audit], call_id="call-1", max_entries=100, fields=pairs
        )

    await append()
    await append()
    await audit.write(actor="a", action="other")
    await append()
    assert [entry.action for entry in (await audit.page()).entries] == ["other", "b"]


async def test_a_filter_finds_what_fits_in_bounded_steps(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_EXAMINED", 20)
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 6)
    log = AuditLog(store.client, store.keys)
    for number in range(50):
        action = "user.create" if number % 25 == 0 else "session.stop"
        await log.write(actor=f"a{number % 2}", action=action, target=f"t{number}")
    pages, cursor = [], None
    while True:
        page = await log.page(10, cursor, AuditFilter(action="user.*"))
        pages.append([entry.target for entry in page.entries])
        if (cursor := page.next_cursor) is None:
            break
    assert pages == [[], ["t25"], ["t0"]]
    (only,) = (await log.page(10, None, AuditFilter(target="t49", actor="a1"))).entries
    since = AuditFilter(since=only.at + 1)
    assert all(entry.at > only.at for entry in (await log.page(10, None, since)).entries)
    page = await log.page(3)
    assert [entry.target for entry in page.entries] == ["t49", "t48", "t47"]
    rest = await log.page(2, page.next_cursor)
    assert [entry.target for entry in rest.entries] == ["t46", "t45"]


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (
            "name=Ada King roles=('user', 'admin') disabled=False",
            'name=Ada King roles=["user","admin"] disabled=false',
        ),
        ("roles=('user',) quotas.sessions=5", 'roles=["user"] quotas.sessions=5'),
        ("roles=()", "roles=[]"),
        ("disabled=True", "disabled=true"),
        ("name=roles=('x'", "name=roles=('x'"),
        ("name=\"roles=('user',)\"", "name=\"roles=('user',)\""),  # a name of today
    ],
)
async def test_what_older_versions_noted_in_pythons_words_reads_as_todays(
    audit: AuditLog, stored: str, shown: str
) -> None:
    await audit.write(actor="admin", action="user.update", target="usr_a", reason=stored)
    await audit.write(actor="admin", action="session.stop", target="ses_a", reason=stored)
    said, changed = (await audit.page()).entries
    assert (changed.reason, said.reason) == (shown, stored)
