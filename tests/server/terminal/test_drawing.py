"""What draws is imported by the commands that draw, and by no other."""

import subprocess
import sys

import pytest

from tests.helpers.root import ROOT


@pytest.mark.parametrize("module", ["server.cli", "server.terminal.chat.once"])
def test_commands_that_draw_nothing_import_nothing_to_draw_with(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'prompt_toolkit', 'rich'}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
