"""`Ear`: the end of a stopped answer is heard, even if it came before anybody listened."""

from server.live.ear import Ear
from tests.server.helpers.entries import DONE, LOG, RESPONSE
from tests.server.helpers.watching import Viewer, kinds


async def test_an_end_that_overtakes_the_reply_to_the_stop_is_heard_once_somebody_listens() -> None:
    viewer = Viewer()
    ear = Ear(viewer, RESPONSE)
    assert ear.put_events(RESPONSE, 1, 1, [*LOG, DONE])
    assert await viewer.sent() == []
    viewer.sent_ends.stop(RESPONSE, lambda: "one two three ")
    ear.listen()
    (done,) = await viewer.sent()
    assert kinds([done]) == ["done"] and viewer.sent_ends.has_end(RESPONSE)


async def test_text_that_comes_before_anybody_listens_is_not_heard() -> None:
    viewer = Viewer()
    ear = Ear(viewer, RESPONSE)
    assert ear.put_events(RESPONSE, 1, 1, LOG)
    ear.listen()
    assert await viewer.sent() == []
