"""`Line`: what is read of an engine's routes, and where they are."""

import pytest

from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.problems import BadStatus, Broken, Unreachable
from server.engines.textual.line import Line, base_of
from tests.server.engines.textual.stand_in import Reply, StandIn, refused


def test_an_address_is_a_clients_or_the_host_alone() -> None:
    assert base_of("https://gpu1:8000") == "https://gpu1:8000/v1"
    assert base_of("https://host/openai/v2") == "https://host/openai/v2"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (refused(401), BadStatus),
        (refused(404), BadStatus),
        (Reply([], 302, {"Location": "/v1/models"}), BadStatus),
        (Reply([b"x" * 600_000] * 2), Broken),
        (Reply([b"{"], is_cut=True), Broken),
    ],
)
async def test_a_list_of_models_is_read_or_refused(reply: Reply, error: type[Exception]) -> None:
    async with StandIn() as stand_in:
        stand_in.models = reply
        with pytest.raises(error):
            await Line(RemoteAddress(stand_in.base)).models()


async def test_who_does_not_listen_cannot_be_reached() -> None:
    async with StandIn() as stand_in:
        line = Line(RemoteAddress(stand_in.base))
    with pytest.raises(Unreachable):
        await line.models()
