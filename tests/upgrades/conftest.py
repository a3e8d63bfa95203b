"""Fixtures: the model that the older data was made with, and this version on that data."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_oracle_model
from tests.upgrades.older_data import restore
from tests.upgrades.older_tree import OLDER


@dataclass(frozen=True)
class Opened:
    """The newest version on the data of an older one."""

    server: Server
    expected: dict[str, Any]

    def shown_to_browser(self, cookie: str) -> set[str]:
        """The sessions that a browser with this cookie is shown.

        Its name has the port of the server, since 0.1.0: that of this one, as if it were the same.
        """
        port = self.server.url.rpartition(":")[2]
        renamed = re.sub(r"^parley-\d+=", f"parley-{port}=", cookie)
        address = self.server.url + "/v1/sessions"
        request = urllib.request.Request(address, headers={"Cookie": renamed})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return {one["id"] for one in json.loads(answer.read())["sessions"]}

    @property
    def sessions(self) -> set[str]:
        """Of the user of all that is stored, as the older version listed them."""
        return {one["id"] for one in self.expected["answers"]["/v1/sessions"]["sessions"]}


@pytest.fixture(scope="session")
def oracle_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("older") / "oracle")


@pytest.fixture(scope="module", params=OLDER)
def opened(
    request: pytest.FixtureRequest, oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """Opened once, for tests that only read."""
    with _opening(request.param, oracle_model, tmp_path_factory.mktemp("upgrade")) as opened:
        yield opened


@pytest.fixture(scope="module", params=OLDER)
def used(
    request: pytest.FixtureRequest, oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """Opened once more, for tests that go on: each with a session of its own."""
    with _opening(request.param, oracle_model, tmp_path_factory.mktemp("used")) as opened:
        yield opened


@contextmanager
def _opening(version: str, model: Path, folder: Path) -> Iterator[Opened]:
    older = restore(version, folder / "data", model)
    adapters = older.directory / "adapters"
    settings = {"PARLEY_LORA_DIR": str(adapters)} if adapters.exists() else {}
    server = Server(older.directory, model, None, PARLEY_PACE="200", **settings)
    try:
        yield Opened(server.start(), older.expected)
    finally:
        server.close()
