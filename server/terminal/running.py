"""The server that runs on a data directory of this machine: its address, and a token for it."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from server.config.settings import PREFIX, ConfigError, load_settings


class NoServer(Exception):
    """Why no server can be asked, in one line."""


def find_server(data_dir: Path | None, secret: str = "token") -> tuple[str, str]:
    """Return URL and token, or admin-token, of the server there. Raises `NoServer`."""
    try:
        settings = load_settings({} if data_dir is None else {"data_dir": data_dir})
    except ConfigError as error:
        raise NoServer(str(error)) from None
    folder = settings.data_dir
    try:
        url: str = json.loads((folder / "server.json").read_text())["url"]
    except (OSError, ValueError, KeyError):
        raise NoServer(f"no server is running on {folder}; start one with `parley serve`") from None
    name = secret.replace("-", "_")
    try:
        return url, getattr(settings, name) or (folder / secret).read_text().strip()
    except OSError:
        setting = PREFIX + name.upper()
        raise NoServer(f"set {setting} as for the server: {folder} holds no {secret}") from None


def follow_server(data_dir: Path | None) -> Callable[[], tuple[str, str]]:
    """What tells the same of now: a server that has restarted may listen at another port.

    Raises `NoServer`, if none is there yet.
    """
    known = find_server(data_dir)

    def address() -> tuple[str, str]:
        nonlocal known
        with suppress(NoServer):
            known = find_server(data_dir)
        return known

    return address
