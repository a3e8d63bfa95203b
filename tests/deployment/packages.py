"""Checkers of what examples/deployment holds, from PyPI: Helm, the formats of Compose and others.

pip fetches them once, in the versions that are pinned here, into `build/deployment/`. They are no
part of Parley: helm-python-sdk (Apache-2.0, 75 MB, Helm 4.2.3 as a library), compose-spec (MIT, 2
MB) and kubernetes-validate (Apache, 22 MB, of which the schemas are read).
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

DEPLOYMENT = ROOT / "examples" / "deployment"
CHART = DEPLOYMENT / "chart"
FOLDER = ROOT / "build" / "deployment"
HELM = "helm-python-sdk==0.2.2"
COMPOSE = "compose-spec==0.2.1"
SCHEMAS = "kubernetes-validate==1.37.0"
KUBERNETES = "1.33.0"  # one of the versions that it has
UNPACKED = {  # what is needed of each; a wheel has three copies of Helm's library
    HELM: lambda name: name.startswith("helm_python/") and ".so." not in name,
    COMPOSE: lambda name: name.startswith("compose_spec/"),
}


def wheel_of(requirement: str) -> Path:
    """The package as it was fetched; skips where there is no index."""
    folder = FOLDER / requirement.replace("==", "-")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
            command = [sys.executable, "-m", "pip", "download", *options, requirement]
            done = subprocess.run(command, capture_output=True, text=True)
            # What checks these files is nothing that Parley itself needs: no index, no check.
            if done.returncode and not os.environ.get("TESTS_NEED_INDEX"):
                pytest.skip(f"{requirement} cannot be fetched")
            assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def importable(requirement: str) -> Path:
    """A folder from which the package can be imported."""
    wheel = wheel_of(requirement)
    folder = wheel.with_name("unpacked")
    with wheel.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            with zipfile.ZipFile(wheel) as archive:
                for name in filter(UNPACKED[requirement], archive.namelist()):
                    archive.extract(name, folder)
            (folder / "whole").touch()
    return folder


def ask(requirement: str, program: str, question: Any) -> Any:
    """What a program says that imports the package, of what it reads as JSON."""
    path = f"import sys; sys.path.insert(0, {str(importable(requirement))!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", path + program],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def schema(kind: str, api_version: str) -> Draft7Validator | None:
    """Of objects of Kubernetes' own, no unknown field allowed; None of what others add to it."""
    group, _, version = api_version.rpartition("/")
    of_group = f"{group.partition('.')[0]}-" if group else ""
    found = _read(f"{kind.lower()}-{of_group}{version}.json")
    return None if found is None else Draft7Validator(found, registry=_shared())


@cache
def _shared() -> Registry[Any]:
    resource = DRAFT7.create_resource(_read("_definitions.json"))
    registry: Registry[Any] = Registry()
    whole: Registry[Any] = registry.with_resource("_definitions.json", resource)
    return whole


def _read(name: str) -> Any:
    archive = _archive()
    try:
        base = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict"
        return json.loads(archive.read(f"{base}/{name}"))
    except KeyError:
        return None


@cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel_of(SCHEMAS))
