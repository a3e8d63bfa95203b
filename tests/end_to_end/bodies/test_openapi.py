"""Schemathesis asks everything that `/openapi.json` declares, as declared and otherwise."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from pathlib import Path

import pytest

from sessions.background import start
from tests.end_to_end.clients.bystander import streaming_bystander
from tests.end_to_end.sdks.environment import OTHERS, clean_environment, python_with
from tests.end_to_end.site.harness import Server, other_user

SCHEMATHESIS = "schemathesis==4.32.5"  # MIT, 0.1 GB with what it needs
CHECKS = (  # what it holds an answer against
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
EXAMPLES = 60  # of each operation, and of each of its links
LEAVES_SECONDS = 5.0  # streams that end with their session are left after this
BESIDE_SECONDS = 8.0  # of one answer of somebody else's, which has its end in sight
SHOWN_CHARACTERS = 6000


@pytest.mark.slow
async def test_what_the_document_declares_can_be_asked_in_any_way(
    bodies_server: Server, tmp_path: Path
) -> None:
    asking = start(asyncio.to_thread(ask_all, bodies_server, tmp_path))
    while not asking.done():
        async with streaming_bystander(bodies_server):
            await asyncio.wait([asking], timeout=BESIDE_SECONDS)
    await asking


@pytest.mark.slow
def test_an_admin_can_ask_it_as_well(oracle_model: Path, tmp_path: Path) -> None:
    """Of a server of its own, whose users are disabled and whose sessions are evicted meanwhile."""
    server = Server(tmp_path / "data", oracle_model)
    server.history.engines.clear()
    try:
        server.start()
        only = ["--include-path-regex", "^/v1/admin", "--exclude-path-regex", "/drain$"]
        ask_all(other_user(server), tmp_path, *only)
    finally:
        server.close()


def ask_all(server: Server, folder: Path, *options: str) -> None:
    """Raises AssertionError if it finds something."""
    seed = random.randrange(2**32)
    program = python_with(SCHEMATHESIS, among=OTHERS).with_name("schemathesis")
    command = [
        *(str(program), "run", f"{server.url}/openapi.json", "--no-color", *options),
        *("--header", f"Authorization: Bearer {server.token}"),
        *("--checks", ",".join(CHECKS), "--continue-on-failure", "--warnings", "off"),
        # One worker: in two threads, CPython 3.11 may lose count of how deep it parses.
        *("--max-examples", str(EXAMPLES), "--seed", str(seed), "--workers", "1"),
        *("--request-timeout", str(LEAVES_SECONDS), "--generation-database", "none"),
    ]
    before = len(server.log(None))
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True
    )
    said = (done.stdout + done.stderr)[-SHOWN_CHARACTERS:]
    log = server.log(None)[before:]
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    assert done.returncode == 0, said
    cases = re.search(r"(\d+) generated", said)
    assert cases is not None and int(cases[1]) > EXAMPLES, said
    print(f"{cases[0]} from seed {seed}")
