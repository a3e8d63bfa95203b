from server.engines.native.backoff import MAX_FAILED_STARTS, STABLE_SECONDS, Backoff


def test_after_ten_failed_starts_in_a_row_no_other_is_tried() -> None:
    restarts = Backoff()
    delays = [restarts.delay_after(5.0)]  # the death itself
    delays += [restarts.delay_after(None) for _ in range(MAX_FAILED_STARTS)]
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30, 30, 30, None]


def test_core_that_was_ready_begins_the_count_of_failed_starts_anew() -> None:
    restarts = Backoff()
    for _ in range(5):
        for _ in range(MAX_FAILED_STARTS - 1):
            assert restarts.delay_after(None) is not None
        assert restarts.delay_after(0.1) is not None


def test_core_that_dies_again_and_again_is_started_ever_later() -> None:
    restarts = Backoff()
    assert [restarts.delay_after(1.0) for _ in range(4)] == [0, 1, 2, 4]
    assert restarts.delay_after(STABLE_SECONDS) == 0
