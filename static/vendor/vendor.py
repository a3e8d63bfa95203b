"""Fetch the page's libraries from the npm registry, or verify the copies that are here.

`python static/vendor/vendor.py` checks every file against manifest.json. With `--refresh` it packs
each package of PACKAGES with `npm pack`, copies the files named below, and rewrites the manifest.
Files are unchanged but for `sourceMappingURL` lines, whose maps we do not ship.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "manifest.json"

HIGHLIGHT_LANGUAGES = (
    "bash c clojure cmake cpp csharp css dart diff dockerfile elixir erlang fortran fsharp go"
    " graphql groovy haskell http ini java javascript json julia kotlin latex less lua makefile"
    " markdown matlab nginx objectivec ocaml perl php powershell protobuf python r ruby rust scala"
    " scss sql swift typescript vbnet xml yaml"
).split()
KATEX_FONTS = (
    "AMS-Regular Caligraphic-Bold Caligraphic-Regular Fraktur-Bold Fraktur-Regular Main-Bold"
    " Main-BoldItalic Main-Italic Main-Regular Math-BoldItalic Math-Italic SansSerif-Bold"
    " SansSerif-Italic SansSerif-Regular Script-Regular Size1-Regular Size2-Regular Size3-Regular"
    " Size4-Regular Typewriter-Regular"
).split()


@dataclass(frozen=True, slots=True)
class Package:
    """One library: which files of its npm package we keep, and under which name."""

    name: str
    version: str
    licence: str
    files: dict[str, str]  # path in the package -> file name here

    @property
    def folder(self) -> str:
        """The version stands in the path, so that a file at a given address never changes."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}"

    @property
    def source(self) -> str:
        return f"https://www.npmjs.com/package/{self.name}/v/{self.version}"


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js", "LICENSE": "LICENSE"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "MIT",
        {"dist/signals.mjs": "signals.js", "LICENSE": "LICENSE"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        {"dist/signals-core.mjs": "signals-core.js", "LICENSE": "LICENSE"},
    ),
    Package("htm", "3.1.1", "Apache-2.0", {"dist/htm.mjs": "htm.js", "LICENSE": "LICENSE"}),
    Package("marked", "18.2.1", "MIT", {"lib/marked.esm.js": "marked.js", "LICENSE": "LICENSE"}),
    Package(
        "dompurify",
        "3.4.18",
        "(MPL-2.0 OR Apache-2.0)",
        {"dist/purify.es.mjs": "purify.js", "LICENSE": "LICENSE", "LICENSE-MPL": "LICENSE-MPL"},
    ),
    Package(
        "idiomorph",
        "0.8.0",
        "0BSD",
        {"dist/idiomorph.esm.js": "idiomorph.js", "LICENSE": "LICENSE"},
    ),
    Package(
        "katex",
        "0.19.1",
        "MIT",
        {"dist/katex.min.js": "katex.js", "dist/katex.min.css": "katex.css", "LICENSE": "LICENSE"}
        | {
            f"dist/fonts/KaTeX_{name}.woff2": f"fonts/KaTeX_{name}.woff2" for name in KATEX_FONTS
        },
    ),
    Package(
        "mermaid",
        "11.17.2",
        "MIT",
        {"dist/mermaid.min.js": "mermaid.js", "LICENSE": "LICENSE"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        {
            "dist/uPlot.esm.js": "uplot.js",
            "dist/uPlot.min.css": "uplot.css",
            "LICENSE": "LICENSE",
        },
    ),
    Package(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        {"es/core.min.js": "core.js", "LICENSE": "LICENSE"}
        | {f"es/languages/{name}.min.js": f"languages/{name}.js" for name in HIGHLIGHT_LANGUAGES},
    ),
)


def sha384(path: Path) -> str:
    """The digest in the form of a subresource integrity attribute."""
    digest = hashlib.sha384(path.read_bytes()).digest()
    return "sha384-" + base64.b64encode(digest).decode()


def without_source_map(content: bytes) -> bytes:
    return re.sub(rb"\n?//# sourceMappingURL=[^\n]*", b"", content)


def fetch(package: Package, temporary: Path) -> None:
    """Replace our copy of one package by what the registry holds."""
    command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    packed = subprocess.run(command, cwd=temporary, check=True, capture_output=True, text=True)
    target = HERE / package.folder
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(temporary / packed.stdout.split()[-1]) as archive:
        for inside, name in package.files.items():
            member = archive.extractfile(f"package/{inside}")
            assert member is not None, f"{package.name} has no file {inside}"
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(without_source_map(member.read()))


def describe(package: Package) -> dict[str, object]:
    names = sorted(package.files.values())
    return {
        "name": package.name,
        "version": package.version,
        "licence": package.licence,
        "source": package.source,
        "files": {
            f"{package.folder}/{name}": sha384(HERE / package.folder / name) for name in names
        },
    }


def refresh() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for package in PACKAGES:
            fetch(package, Path(temporary))
            print(f"fetched {package.name} {package.version}")
    manifest = {"packages": [describe(package) for package in PACKAGES]}
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def problems() -> list[str]:
    """Every way in which this folder differs from its manifest; empty when all is well."""
    listed: dict[str, str] = {}
    for package in json.loads(MANIFEST.read_text())["packages"]:
        listed |= package["files"]
    own = {Path(__file__).name, MANIFEST.name}
    found = {
        path.relative_to(HERE).as_posix()
        for path in HERE.rglob("*")
        if path.is_file() and path.name not in own and "__pycache__" not in path.parts
    }
    changed = [name for name in found & listed.keys() if sha384(HERE / name) != listed[name]]
    return (
        [f"missing: {name}" for name in sorted(listed.keys() - found)]
        + [f"not in the manifest: {name}" for name in sorted(found - listed.keys())]
        + [f"changed: {name}" for name in sorted(changed)]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Verify (or refresh) the vendored libraries.")
    parser.add_argument("--refresh", action="store_true", help="fetch them again with npm")
    if parser.parse_args().refresh:
        refresh()
    for problem in problems():
        print(problem)
    return 1 if problems() else 0


if __name__ == "__main__":
    raise SystemExit(main())
