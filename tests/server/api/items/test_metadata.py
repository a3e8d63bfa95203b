"""Sixteen pairs, as OpenAI bounds them."""

import pytest
from msgspec import Struct

from server.api.items.metadata import Metadata, check_metadata
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError


class Body(Struct):
    metadata: Metadata | None = None


def checked(metadata: object) -> dict[str, str]:
    body: Body = to_struct({"metadata": metadata}, Body)
    return check_metadata(body.metadata)


def test_pairs_of_short_texts_are_kept() -> None:
    most = {f"{number:064}": "v" * 512 for number in range(16)}
    assert checked(most) == most
    assert checked({"a": ""}) == {"a": ""}
    assert checked(None) == checked({}) == {}


@pytest.mark.parametrize(
    "metadata",
    [
        {str(number): "" for number in range(17)},
        {"x" * 65: ""},
        {"": "x"},
        {"x": "v" * 513},
        {"x": 7},
        {"x": None},
        [],
        "x",
    ],
)
def test_other_metadata_is_refused_by_its_name(metadata: object) -> None:
    with pytest.raises(ApiError) as refused:
        checked(metadata)
    assert (refused.value.param or "").startswith("metadata")
