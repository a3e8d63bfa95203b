"""The order of the files: the slow ones first, so that the processes of a run end together."""

import pytest

SLOW_FIRST = ("end_to_end", "compat")  # folders; each of their files starts servers or programs


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind pytest-randomly, whose order within these groups stays."""
    items.sort(key=lambda item: not set(SLOW_FIRST) & set(item.path.parts))
