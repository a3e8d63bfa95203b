from pathlib import Path

from tests.compat import vllm_args
from tests.helpers.root import ROOT


def test_names_and_defaults_are_those_of_the_real_package(source: Path) -> None:
    written = (ROOT / "engine" / "client" / "vllm_args.py").read_text()
    assert written == vllm_args.text(source), "python -m tests.compat.vllm_args makes it anew"
