"""Writes `engine/client/vllm_args.py`: arguments of vLLM's `AsyncEngineArgs`, with defaults.

    python -m tests.compat.vllm_args > engine/client/vllm_args.py

Names and defaults are read off vLLM's source, which is parsed and not run. A default that is an
object of vLLM's own is None here, with its name in a comment: who builds none asks for nothing.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.compat.vllm_source import VERSION, vllm_source

HEAD = f'''"""`VllmArgs`: arguments of vLLM's `AsyncEngineArgs`, version {VERSION}, with defaults.

All but `model`, which must be given here. Made by `tests/compat/vllm_args.py` from vLLM's source:
run that instead of editing this. A default that is an object of vLLM's own is None here, with its
name in a comment.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class VllmArgs:
    """What a program written for vLLM may pass; `AbsentFeatures` decides what happens then."""

'''
REQUIRED = ("model",)  # here, so that its default is not ours
CONTAINERS: dict[str, Any] = {"list": [], "dict": {}, "set": set()}
CONSTANTS = ""  # what is named at a module's top, among the classes
Classes = Mapping[str, Mapping[str, ast.expr]]


class _Object(str):
    """The name of a class of vLLM's, an object of which is a default."""

    __slots__ = ()


def arguments(source: Path) -> dict[str, Any]:
    """Name → default, an `_Object` where it is one of vLLM's own. In vLLM's order."""
    paths = [source / "vllm/engine/arg_utils.py", *sorted((source / "vllm/config").glob("*.py"))]
    classes: dict[str, dict[str, ast.expr]] = {CONSTANTS: {}}
    for path in paths:
        module = ast.parse(path.read_text())
        classes[CONSTANTS].update(_fields(module))
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = dict(_fields(node))
    given = classes["EngineArgs"] | classes["AsyncEngineArgs"]
    return {name: _value(default, classes) for name, default in given.items()}


def _fields(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
            yield line.target.id, line.value
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            yield line.targets[0].id, line.value


def _value(default: ast.expr, classes: Classes) -> Any:
    match default:
        case ast.Attribute(ast.Name(owner), name) if owner in classes:
            return _value(classes[owner][name], classes)
        case ast.Call(ast.Name("get_field"), [ast.Name(owner), ast.Constant(str(name))]):
            return _value(classes[owner][name], classes)
        case ast.Call(ast.Name("field" | "Field"), positional, keywords):
            named = {keyword.arg: keyword.value for keyword in keywords}
            if "default_factory" in named:
                return _made_by(named["default_factory"], classes)
            return _value(positional[0] if positional else named["default"], classes)
        case ast.Call(ast.Name(name), [], []) if name in classes:
            return _Object(name)
        case ast.Name(name) if name in classes[CONSTANTS]:
            return _value(classes[CONSTANTS][name], classes)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left, classes) * _value(right, classes)
    return ast.literal_eval(default)


def _made_by(factory: ast.expr, classes: Classes) -> Any:
    match factory:
        case ast.Lambda(body=body):
            return _value(body, classes)
        case ast.Name(name) if name in CONTAINERS:
            return CONTAINERS[name]
        case ast.Name(name) if name in classes:
            return _Object(name)
    raise ValueError(f"a default that we cannot read: {ast.unparse(factory)}")


def text(source: Path) -> str:
    """The module."""
    lines = (_line(*each) for each in arguments(source).items() if each[0] not in REQUIRED)
    return HEAD + "".join(f"    {line}\n" for line in lines)


def _line(name: str, default: Any) -> str:
    if isinstance(default, _Object):
        return f"{name}: Any = None  # {default}()"
    if isinstance(default, list | dict | set):
        makes = f"lambda: {_quoted(default)}" if default else type(default).__name__
        return f"{name}: Any = field(default_factory={makes})"
    return f"{name}: Any = {_quoted(default)}"


def _quoted(default: Any) -> str:
    """As ruff formats it."""
    return repr(default).replace("'", '"')


if __name__ == "__main__":
    sys.stdout.write(text(vllm_source()))
