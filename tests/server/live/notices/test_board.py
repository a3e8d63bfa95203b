"""`NoticeBoard`: each change is sent once, to all, and to those who come later."""

from typing import Any, cast

import pytest

from server.live.notices.board import NoticeBoard, notice_frame
from server.protocol.server_frames import NoticeUpdated
from sessions.directory.notices import Notice, Notices
from sessions.model.events import LiveFrame
from sessions.store.store import SessionStore


class Hub:
    """The hub's part of it."""

    def __init__(self) -> None:
        self.frames: list[NoticeUpdated] = []

    def broadcast(self, frame: NoticeUpdated) -> None:
        self.frames.append(frame)


@pytest.fixture
def notices(store: SessionStore) -> Notices:
    return Notices(store.client, store.keys)


async def test_each_change_is_sent_once(notices: Notices) -> None:
    hub = Hub()
    board = NoticeBoard(notices, cast("Any", hub))
    await board.read()
    assert hub.frames == [] and board.frame is None
    notice = await notices.put("info", "soon", 60, "admin")
    for _ in range(2):
        await board.read()
    assert hub.frames == [notice_frame(notice)] == [board.frame]
    await notices.remove()
    for _ in range(2):
        await board.read()
    assert hub.frames[1:] == [NoticeUpdated(notice=None)] and board.frame is None


async def test_one_whose_time_is_over_is_sent_to_nobody_who_comes(notices: Notices) -> None:
    board = NoticeBoard(notices, cast("Any", Hub()))
    board._shown = Notice("ntc_a", "info", "past", 1, 0, "admin")
    assert board.frame is None


def test_a_message_of_another_kind_is_none_of_its_business(store: SessionStore) -> None:
    board = NoticeBoard(Notices(store.client, store.keys), cast("Any", Hub()))
    board.on_announcement(LiveFrame({"type": "user_changed", "uid": "usr_a"}))
    assert not board._changed.is_set()
    board.on_announcement(LiveFrame({"type": "notice"}))
    assert board._changed.is_set()
