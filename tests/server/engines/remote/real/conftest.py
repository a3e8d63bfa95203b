"""Real engines behind an address, and our own engine's client half joined to them."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from engine import AsyncLLM, demo_model
from server.engines.remote.checkpoint import read_checkpoint
from server.engines.remote.dialects.dialect import Dialect
from server.engines.remote.dialects.llamacpp import LlamaCpp
from server.engines.remote.dialects.vllm import VLLM
from server.engines.remote.link import RemoteLink
from server.engines.remote.wire.address import RemoteAddress
from tests.server.engines.remote.real.servers import SERVERS, Pair, RealServer, Relay

READY_SECONDS = 60.0
DIALECTS: dict[str, type[Any]] = {"llamacpp": LlamaCpp, "vllm": VLLM}


@pytest.fixture(scope="module", params=sorted(SERVERS))
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealServer]]:
    """Two of a kind, which a test starts."""
    folder = tmp_path_factory.mktemp(request.param)
    servers = [SERVERS[request.param](folder, number) for number in range(2)]
    yield servers
    for server in servers:
        server.end()


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with Relay() as relay:
        yield relay


@pytest.fixture
async def pair(servers: list[RealServer], relay: Relay) -> Pair:
    pair = Pair(relay, servers)
    await pair.begin()
    return pair


@pytest.fixture
def dialect(pair: Pair) -> Dialect:
    made: Dialect = DIALECTS[pair.kind](read_checkpoint(demo_model()).tokenizer, None)
    return made


@pytest.fixture
async def llm(relay: Relay, dialect: Dialect) -> AsyncIterator[AsyncLLM]:
    checkpoint = read_checkpoint(demo_model())
    address = RemoteAddress(f"http://127.0.0.1:{relay.port}")
    link = RemoteLink(address, dialect, checkpoint, served_model_name="demo")
    llm = AsyncLLM.connect(link, model=str(demo_model()), tokenizer=checkpoint.tokenizer)
    try:
        await llm.wait_ready(READY_SECONDS)
        yield llm
    finally:
        llm.shutdown()
