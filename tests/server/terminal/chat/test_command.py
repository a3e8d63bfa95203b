"""`parley chat` before it asks anything."""

import io
import sys
from pathlib import Path

import pytest
import typer

from server.terminal.chat.command import chat


class Interrupted(io.StringIO):
    def read(self, size: int | None = -1) -> str:
        raise KeyboardInterrupt


def test_ctrl_c_at_a_question_that_is_still_typed_ends_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:1"}')
    (tmp_path / "token").write_text("a-secret-of-24-characters")
    monkeypatch.setattr(sys, "stdin", Interrupted())
    with pytest.raises(typer.Exit) as ended:
        chat(data_dir=tmp_path, once=True)
    assert ended.value.exit_code == 130
    assert capsys.readouterr() == ("", "")
