"""The display that WebKit is given: a test fails, and waits for no end, where it does not come."""

from pathlib import Path

import pytest

from tests.end_to_end.browsers import webkit


def stand_in(folder: Path, script: str) -> str:
    """A program in the place of Xvfb."""
    path = folder / "Xvfb"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


async def test_a_display_has_the_number_that_its_server_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webkit, "DISPLAY", stand_in(tmp_path, "echo 42; exec sleep 1000"))
    async with webkit.x_display() as display:
        assert display == ":42"


async def test_a_display_server_that_dies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webkit, "DISPLAY", stand_in(tmp_path, "exit 1"))
    with pytest.raises(AssertionError, match="Xvfb ended without a display"):
        async with webkit.x_display():
            pass


async def test_a_display_server_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webkit, "DISPLAY", stand_in(tmp_path, "exec sleep 1000"))
    monkeypatch.setattr(webkit, "PATIENCE", 0.1)
    with pytest.raises(TimeoutError):
        async with webkit.x_display():
            pass
