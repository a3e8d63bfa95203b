"""What no module of the product may call, since it turns bytes from outside into code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.root import ROOT

PACKAGES = ("server", "sessions", "engine", "csrc")
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "eval", "exec", "compile", "os.system"}


def product_modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def forbidden(source: str) -> Iterator[str]:
    """What a module imports or calls that it must not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if root_of(alias.name) in MODULES)
        elif isinstance(node, ast.ImportFrom) and root_of(node.module or "") in MODULES:
            yield node.module or ""
        elif isinstance(node, ast.Call):
            if (name := ast.unparse(node.func)) in CALLS:
                yield name
            for keyword in node.keywords:
                is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if keyword.arg in ("shell", "trust_remote_code") and is_true:
                    yield f"{keyword.arg}=True"


def root_of(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.row("P21")
def test_no_module_unpickles_evaluates_or_runs_code_of_others() -> None:
    modules = list(product_modules())
    assert len(modules) > 100
    found = {str(path): list(forbidden(path.read_text())) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.row("P21")
def test_the_search_for_forbidden_calls_finds_planted_ones() -> None:
    source = "import pickle\nfrom marshal import loads\ntorch.load(f)\nrun(x, shell=True)\neval(s)"
    assert sorted(forbidden(source)) == ["eval", "marshal", "pickle", "shell=True", "torch.load"]
