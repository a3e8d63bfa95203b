"""`import engine`: all names that it promises, each imported with its module when asked for."""

import subprocess
import sys

import pytest

import engine
from tests.helpers.root import ROOT

ASK = """
import sys
import engine
engine.SamplingParams
print([name for name in sys.modules if name.startswith("engine.")])
"""


def test_every_promised_name_is_there() -> None:
    assert all(getattr(engine, name) is not None for name in engine.__all__)
    assert set(engine.__all__) <= set(dir(engine))


def test_a_name_imports_its_own_module_and_what_that_needs() -> None:
    said = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "engine.sampling_params" in said.stdout and "engine.client" not in said.stdout


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'engine' has no attribute 'AsyncLMM'"):
        # An expression without use to ruff: to look the name up is all that is tried here.
        engine.AsyncLMM  # noqa: B018  (what is asked for is the attribute)
