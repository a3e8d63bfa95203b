import argparse
import re
from pathlib import Path

from engine.client.args import AsyncEngineArgs
from tests.compat import vllm_args
from tests.helpers.root import ROOT


def test_names_and_defaults_are_those_of_the_real_package(source: Path) -> None:
    written = (ROOT / "engine" / "client" / "vllm_args.py").read_text()
    assert written == vllm_args.text(source), "python -m tests.compat.vllm_args makes it anew"


def test_flags_are_those_of_the_real_package(source: Path) -> None:
    code = (source / "vllm" / "engine" / "arg_utils.py").read_text()
    calls = re.findall(r'add_argument\(\s*((?:"-[\w-]+",?\s*)+)', code)
    theirs = [re.findall(r'"(-[\w-]+)"', call) for call in calls if '"--help"' not in call]
    assert len(theirs) > 200
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    ours = {flag: action.dest for flag, action in parser._option_string_actions.items()}
    for flags in theirs:
        name = flags[0].removeprefix("--").replace("-", "_")
        assert {ours.get(flag) for flag in flags} == {name}, flags
