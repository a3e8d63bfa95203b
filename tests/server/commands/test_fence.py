"""An answer's fence: from memory where this worker produces it, else from the store."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.commands.fence import fence_of
from sessions.model.errors import ResponseNotFound
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat


def services(store: SessionStore, run: Any = None) -> Any:
    return SimpleNamespace(store=store, runs=SimpleNamespace(local=lambda response_id: run))


@pytest.mark.parametrize("uid", ["alice", None])
async def test_an_answer_of_this_worker_has_the_fence_of_its_run(uid: str | None) -> None:
    run = SimpleNamespace(uid="alice", fence=7)
    assert await fence_of(services(cast("SessionStore", None), run), uid, "resp") == 7


@pytest.mark.parametrize("uid", ["alice", None])
async def test_another_worker_s_answer_has_the_fence_that_is_stored(
    chat: Chat, uid: str | None
) -> None:
    begun = await chat.begin()
    assert await fence_of(services(chat.store), uid, begun.response_id) == begun.fence


@pytest.mark.parametrize("is_local", [True, False])
async def test_an_answer_of_somebody_else_is_not_found(chat: Chat, is_local: bool) -> None:
    rid = (await chat.begin()).response_id
    run = SimpleNamespace(uid="alice", fence=1) if is_local else None
    with pytest.raises(ResponseNotFound):
        await fence_of(services(chat.store, run), "mallory", rid)
