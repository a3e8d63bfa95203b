"""Fixtures: the model that the older data was made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.tiny_model import build_oracle_model


@pytest.fixture(scope="session")
def oracle_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("older") / "oracle")
