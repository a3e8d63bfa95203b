"""A group of engines for the tests here."""

from collections.abc import AsyncIterator

import pytest

from tests.server.helpers.scripted_links import Site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Of two engines that are ready."""
    site = Site()
    await site.settle()
    yield site
    site.close()
