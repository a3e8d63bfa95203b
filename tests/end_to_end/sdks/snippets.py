"""The snippets of docs/clients/clients.md, and how a reader runs them."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.end_to_end.sdks.environment import clean_environment
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

PAGE = (ROOT / "docs" / "clients" / "clients.md").read_text()
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"  # the server's, on the page


def sections() -> dict[str, list[tuple[str, str]]]:
    """By heading, the language and the text of each snippet; those before all others at ""."""
    parts = re.split(r"^## (.+)\n", f"\n{PAGE}", flags=re.MULTILINE)
    texts = {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))
    return {heading: FENCED.findall(text) for heading, text in texts.items()}


def snippet(heading: str, place: int = 0) -> str:
    return sections()[heading][place][1]


def prepare(server: Server, folder: Path) -> None:
    """Make it the folder that the page is read in."""
    (folder / "data").symlink_to(server.data_dir)
    (folder / "engine").symlink_to(ROOT / "engine")


def command_of(server: Server, command: str) -> list[str]:
    """It runs this after what the page says first; only the server's address is another."""
    exports = snippet("")
    assert ADDRESS in exports
    return ["bash", "-euo", "pipefail", "-c", exports.replace(ADDRESS, server.url) + command]


def run(
    server: Server, folder: Path, command: str, environment: Mapping[str, str] | None = None
) -> str:
    """What it prints; it must end well."""
    prepare(server, folder)
    done = subprocess.run(
        command_of(server, command),
        cwd=folder,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_python(
    server: Server,
    folder: Path,
    python: Path,
    text: str,
    environment: Mapping[str, str] | None = None,
) -> str:
    (folder / "snippet.py").write_text(text)
    return run(server, folder, f"exec {python} snippet.py", environment)
