"""From a message to the ids of its items, and back."""

import pytest

from server.api.items.ids import (
    call_item_id,
    conversation_id_of,
    message_of,
    output_item_id,
    reasoning_id,
    server_call_item_id,
    session_of_conversation,
)

MESSAGE = "msg_abcdefghijklmnopqr_-12"


@pytest.mark.parametrize(
    ("item_id", "shown"),
    [
        (MESSAGE, MESSAGE),
        (reasoning_id(MESSAGE), "rs_abcdefghijklmnopqr_-12"),
        (call_item_id(MESSAGE, 0), "fc_abcdefghijklmnopqr_-12_0"),
        (server_call_item_id(MESSAGE, 7), "mcp_abcdefghijklmnopqr_-12_7"),
        (output_item_id(MESSAGE, 2047), "fco_abcdefghijklmnopqr_-12_2047"),
    ],
)
def test_an_id_says_which_message_it_is_of(item_id: str, shown: str) -> None:
    assert item_id == shown
    assert message_of(item_id) == MESSAGE


@pytest.mark.parametrize(
    "item_id",
    [
        "",
        "msg_",
        "rs_abcdefghijklmnopqr_-12_0",
        "rs_abcdefghijklmnopqr_-12\n",
        "fc_abcdefghijklmnopqr_-12",
        "fc_abcdefghijklmnopqr_-12_",
        "fc_abcdefghijklmnopqr_-12_12345",
        "fc_abcdefghijklmnopqr_-12_1\n",
        "fc_abcdefghijklmnopqr_-1é_1",
        "resp_abcdefghijklmnopqr_-12",
        "xx_abcdefghijklmnopqr_-12_1",
    ],
)
def test_what_is_no_items_id_is_of_no_message(item_id: str) -> None:
    assert message_of(item_id) is None


def test_a_conversation_is_a_session_by_another_name() -> None:
    session_id = "ses_abcdefghijklmnopqr_-12"
    assert conversation_id_of(session_id) == "conv_abcdefghijklmnopqr_-12"
    assert session_of_conversation("conv_abcdefghijklmnopqr_-12") == session_id
    for other in ("", "conv_", session_id, "conv_x", "conv_ses_abcdefghijklmnopqr_-12", "conv_*"):
        assert session_of_conversation(other) is None
