"""What Parley makes of the settings and routes that a file in examples/deployment names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from unittest.mock import MagicMock, patch

from server.api.rest.operation import Access
from server.api.rest.ops import Ops
from server.config.settings import PREFIX, Settings, load_settings

SECRETS = ("PARLEY_TOKEN", "PARLEY_ADMIN_TOKEN")


def read_settings(given: Mapping[str, str]) -> Settings:
    """As `parley serve` reads this environment: a name that it does not know is a `ConfigError`."""
    secrets = {name: f"{name} of more than 24 characters" for name in SECRETS if name in given}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with patch.dict(os.environ, {**environment, **given, **secrets}, clear=True):
        return load_settings({})


def public_routes() -> set[str]:
    """Paths for monitoring that need no token."""
    operations = Ops(MagicMock(), MagicMock()).operations()
    return {each.path for each in operations if each.access is Access.PUBLIC}
