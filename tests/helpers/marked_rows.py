"""Which rows of docs/reliability.md each test shows, by the mark `row`, read from the source."""

import ast
from collections import defaultdict
from functools import cache

from tests.helpers.root import ROOT


@cache
def rows_by_test() -> dict[str, set[str]]:
    """Name of each test, and the rows that it or its whole file is marked with."""
    rows: dict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "tests").rglob("test_*.py"):
        body = ast.parse(file.read_text()).body
        whole_file = {row for node in body if _names_marks(node) for row in _rows(node)}
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = [row for decorator in node.decorator_list for row in _rows(decorator)]
                rows[node.name] |= {*marks, *whole_file}
    return rows


def _names_marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def _rows(node: ast.AST) -> list[str]:
    return [
        ast.literal_eval(code)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.row"
        for code in call.args
    ]
