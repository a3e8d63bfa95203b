"""What draws is imported by the commands that draw, and by no other."""

import subprocess
import sys

import pytest

from tests.helpers.root import ROOT


@pytest.mark.parametrize("module", ["server.cli", "server.terminal.chat.once"])
def test_commands_that_draw_nothing_do_not_import_prompt_toolkit(module: str) -> None:
    code = f"import sys, {module}; sys.exit('prompt_toolkit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
