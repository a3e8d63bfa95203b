"""The queue of a session, as a value: each change gives another one."""

import pytest

from sessions.model.errors import ItemNotFound, QueueFull
from sessions.model.queue import (
    MAX_ASKED_BYTES,
    MAX_BYTES,
    MAX_ITEMS,
    Queue,
    QueuedInput,
    TakenInput,
    decode_queue,
    derived_item_id,
)
from tests.sessions.helpers.queued import queue_of, queued, texts_of


def test_what_is_added_is_the_last_or_where_it_is_wanted() -> None:
    queue = queue_of("a", "b")
    assert texts_of(queue.added(queued("c"))) == ["a", "b", "c"]
    assert texts_of(queue.added(queued("c"), 0)) == ["c", "a", "b"]
    assert texts_of(queue.added(queued("c"), 99)) == ["a", "b", "c"]
    assert texts_of(queue) == ["a", "b"]


def test_what_is_asked_now_comes_before_what_is_not_and_after_its_like() -> None:
    queue = queue_of("a").added(queued("b", now=True)).added(queued("c", now=True), 99)
    assert texts_of(queue) == ["b", "c", "a"]


def test_an_item_gets_other_words_settings_and_another_place() -> None:
    queue = queue_of("a", "b", "c").refused(queued("c"), "model_not_found", "no such model")
    changed = queue.changed("c", text="d", settings={"top_k": 3}, place=1)
    assert texts_of(changed) == ["a", "d", "b"]
    assert (changed.item("c").settings, changed.item("c").error) == ({"top_k": 3}, None)
    assert texts_of(queue.changed("a", place=99)) == ["b", "c", "a"]


def test_an_item_that_is_not_there_is_not_found() -> None:
    for change in (
        lambda: queue_of("a").changed("x", text="b"),
        lambda: queue_of("a").sent("x", None),
        lambda: queue_of("a").item("x"),
    ):
        with pytest.raises(ItemNotFound):
            change()


def test_a_queue_takes_so_many_items_and_so_much_text() -> None:
    full = queue_of(*(f"{number}" for number in range(MAX_ITEMS)))
    with pytest.raises(QueueFull):
        full.added(queued("one more"))
    big = Queue().added(queued("x" * MAX_BYTES))
    with pytest.raises(QueueFull):
        big.added(queued("y"))
    with pytest.raises(QueueFull):
        big.changed(big.items[0].id, text="é" * MAX_BYTES)
    with pytest.raises(QueueFull):
        big.changed(big.items[0].id, settings={"system": "x"})


def test_the_first_is_due_alone() -> None:
    assert [item.text for item in queue_of("a", "b").due] == ["a"]
    assert Queue().due == ()


def test_words_that_steer_one_answer_are_due_together() -> None:
    queue = queue_of("a")
    for text, steers in (("b", "resp_1"), ("c", "resp_1"), ("d", "resp_2")):
        queue = queue.added(queued(text, now=True, steers=steers))
    due = queue.due
    assert [item.text for item in due] == ["b", "c"]
    taken = TakenInput(queue, due)
    assert (taken.text, texts_of(taken.rest)) == ("b\n\nc", ["d", "a"])


def test_words_are_asked_together_only_with_the_same_settings_and_as_far_as_they_fit() -> None:
    steers = {"now": True, "steers": "resp_1"}
    queue = Queue().added(queued("a", **steers)).added(queued("b", settings={"top_k": 3}, **steers))
    assert [item.text for item in queue.due] == ["a"]
    long = queued("x" * MAX_ASKED_BYTES, **steers)
    assert [item.text for item in Queue().added(queued("a", **steers)).added(long).due] == ["a"]


def test_nothing_is_moved_before_what_is_asked_now() -> None:
    queue = queue_of("a").added(queued("b", now=True))
    assert texts_of(queue.changed("a", place=0)) == ["b", "a"]
    assert texts_of(queue.added(queued("c"), 0)) == ["b", "c", "a"]
    assert texts_of(queue.changed("b", place=0)) == ["b", "a"]


def test_a_pause_ends_with_the_queue() -> None:
    paused = Queue(items=queue_of("a").items, is_paused=True)
    assert not paused.without(paused.items).is_paused
    assert not paused.sent("a", None).is_paused


def test_a_refusal_counts_only_for_what_was_tried() -> None:
    queue = queue_of("a").changed("a", text="b")
    assert queue.refused(queued("a"), "model_not_found", "no such model") == queue


def test_a_pause_holds_up_all_but_what_is_asked_now() -> None:
    paused = Queue(items=queue_of("a", "b").items, is_paused=True)
    assert paused.due == ()
    sent = paused.sent("b", None)
    assert (texts_of(sent), sent.is_paused) == (["b", "a"], True)
    assert [item.text for item in sent.due] == ["b"]
    assert [item.text for item in paused.resumed().due] == ["a"]


def test_what_could_not_be_asked_holds_up_the_rest_until_it_is_sent_again() -> None:
    queue = queue_of("a", "b").refused(queued("a"), "model_not_found", "no such model")
    assert queue.due == ()
    assert queue.items[0].wire()["error"]["code"] == "model_not_found"
    assert [item.text for item in queue.sent("a", None).due] == ["a"]
    assert [item.text for item in queue.without([queue.items[0]]).due] == ["b"]


def test_a_queue_is_read_as_it_was_stored() -> None:
    queue = queue_of("a").added(queued("b", now=True, steers="resp_1"))
    assert decode_queue([queue.encode(), b"7", b"1", None]) == Queue(7, queue.items, is_paused=True)
    assert decode_queue([None, None, None, None]) == Queue()


def test_fields_that_a_later_version_has_stored_are_ignored() -> None:
    stored = queue_of("a").encode().replace(b'"id":', b'"later":1,"id":')
    assert texts_of(decode_queue([stored, b"1", b"", None])) == ["a"]


def test_events_leave_a_long_text_out() -> None:
    item = queued("é" * 257)
    assert item.wire()["input"] == item.text
    shown = item.wire(whole=False)
    assert "input" not in shown and shown["content_omitted"] is True
    assert shown["beginning"] == "é" * 100
    item = queued("short", settings={"system": "x" * 513, "top_k": 3})
    assert item.wire()["settings"] == item.settings
    shown = item.wire(whole=False)
    assert (shown["input"], shown["settings"]) == ("short", {"top_k": 3})
    assert shown["content_omitted"] is True


def test_a_form_counts_as_a_text_and_events_leave_a_long_one_out() -> None:
    form = {"type": "regex", "pattern": "a" * 30_000}
    first = queued("a", settings={"output": form, "seed": 1})
    assert first.wire()["settings"]["output"] == form
    shown = first.wire(whole=False)
    assert (shown["settings"], shown["content_omitted"]) == ({"seed": 1}, True)
    short = {"output": {"type": "json"}}
    assert queued("a", settings=short).wire(whole=False)["settings"] == short
    queue = Queue()
    with pytest.raises(QueueFull):
        for number in range(9):
            queue = queue.added(queued(f"{number}", settings=first.settings))
    assert len(queue.items) == 8


def test_the_words_of_a_door_count_and_are_shown_to_nobody() -> None:
    words = {"door": "d", "asked": {"instructions": "x" * 30_000}, "settings": {}}
    first = queued("a", steers="r", brought=words)
    assert first.num_bytes > 30_000
    assert first.wire() == queued("a", steers="r").wire()
    queue = Queue().added(first).added(queued("b", steers="r", brought=words))
    assert [item.text for item in queue.due] == ["a", "b"]
    assert [item.text for item in queue.added(queued("c", steers="r")).due] == ["a", "b"]
    assert decode_queue([queue.encode(), b"1", b"", None]).items == queue.items


def test_a_key_gives_one_id_in_each_session() -> None:
    assert derived_item_id("ses_a", "k") == derived_item_id("ses_a", "k")
    assert len({derived_item_id(s, k) for s in ("ses_a", "ses_b") for k in ("k", "l")}) == 4


def test_items_are_values() -> None:
    assert queued("a") == QueuedInput(id="a", idempotency_key="a", body_hash="hash", text="a")
