"""The page's files: libraries as vendored, modules without markup, and the JavaScript tests."""

from __future__ import annotations

import html.parser
import json
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
STATIC = TESTS.parents[1] / "static"
MODULES = sorted((STATIC / "js").rglob("*.js"))

NODE_NEEDED = (20, 19)  # from here on .js files with `import` are taken as modules without a flag

# Each of these would let a model's text become markup, or needs a policy the page does not allow.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML"
    r"|style=|setAttribute\(\s*[\"']style|\beval\(|new Function\("
)


class PageParser(html.parser.HTMLParser):
    """Collects the page's scripts, style attributes and local addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.inline_scripts: list[str] = []
        self.styled: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "style" in given or tag == "style":
            self.styled.append(tag)
        if tag == "script" and "src" not in given:
            self.inline_scripts.append(given.get("type") or "")
        if tag in {"script", "link"}:
            self.addresses.append(given.get("src") or given.get("href") or "")


@pytest.fixture(scope="module", params=["index.html", "admin.html", "share.html"])
def page(request: pytest.FixtureRequest) -> PageParser:
    parser = PageParser()
    parser.feed((STATIC / request.param).read_text())
    return parser


@pytest.mark.parametrize("name", ["index.html", "admin.html", "share.html"])
def test_each_module_that_a_page_imports_is_asked_for_at_once(name: str) -> None:
    """Otherwise a module is asked for when the one that imports it has come, five levels deep."""
    markup = (STATIC / name).read_text()
    (import_map,) = re.findall(r'<script type="importmap">(.*?)</script>', markup, re.DOTALL)
    places: dict[str, str] = json.loads(import_map)["imports"]
    (entry,) = re.findall(r'<script type="module" src="([^"]+)"', markup)
    reached: set[str] = set()
    todo = [entry]
    while todo:
        address = todo.pop()
        if address not in reached:
            reached.add(address)
            source = (STATIC / address.removeprefix("/static/")).read_text()
            for wanted in re.findall(r'(?:from|import)\s*"([^"]+)"', source):
                beside = posixpath.join(posixpath.dirname(address), wanted)
                todo.append(places.get(wanted) or posixpath.normpath(beside))
    preloaded = re.findall(r'<link rel="modulepreload" href="([^"]+)"', markup)
    assert sorted(preloaded) == sorted(reached - {entry})


def test_all_pages_have_the_import_map_that_the_policy_allows() -> None:
    maps = [
        re.findall(r'<script type="importmap">.*?</script>', (STATIC / name).read_text(), re.DOTALL)
        for name in ("index.html", "admin.html", "share.html")
    ]
    assert maps[0] == maps[1] == maps[2] and len(maps[0]) == 1


def local(address: str) -> Path:
    return STATIC / address.removeprefix("/static/")


def node_version(node: str) -> tuple[int, int]:
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    major, minor = re.findall(r"\d+", found.stdout)[:2]
    return int(major), int(minor)


def test_vendored_files_equal_the_manifest() -> None:
    command = [sys.executable, str(STATIC / "vendor" / "vendor.py")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_package_comes_with_its_licence() -> None:
    manifest = json.loads((STATIC / "vendor" / "manifest.json").read_text())
    for package in manifest["packages"]:
        assert {"name", "version", "licence", "source", "files"} == package.keys()
        assert any(name.endswith("/LICENSE") for name in package["files"]), package["name"]


def test_vendored_files_name_no_source_map() -> None:
    for path in (STATIC / "vendor").rglob("*.js"):
        assert "sourceMappingURL" not in path.read_text(), path.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(STATIC / "js")))
def test_modules_make_nodes_and_never_markup(path: Path) -> None:
    found = FORBIDDEN.search(path.read_text())
    assert found is None, f"{path.name} contains {found and found.group()}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(STATIC / "js")))
def test_modules_import_what_exists(path: Path) -> None:
    imports = re.findall(r'(?:from|import) "([^"]+)";', path.read_text())
    names = json.loads(import_map())["imports"]
    for name in imports:
        target = path.parent / name if name.startswith(".") else local(names[name])
        assert target.is_file(), f"{path.name} imports {name}"


def test_the_import_map_is_the_only_inline_script(page: PageParser) -> None:
    assert [kind for kind in page.inline_scripts if kind != "module"] == ["importmap"]


def test_the_page_has_no_inline_style(page: PageParser) -> None:
    assert page.styled == []


def test_the_page_names_only_files_that_exist(page: PageParser) -> None:
    addresses = [address for address in page.addresses if address]
    addresses += json.loads(import_map())["imports"].values()
    for address in addresses:
        assert address.startswith("/static/") and local(address).is_file(), address


def test_the_bundler_keeps_the_names_that_pages_of_the_server_use() -> None:
    """In these pages, some of them in Python, names do not change with the files."""
    kept = (STATIC / "bundler" / "bundle.mjs").read_text()
    pages = [STATIC / "share-refused.html", STATIC / "diagram.html"]
    sources = [path.read_text() for path in [*(STATIC.parent / "server").rglob("*.py"), *pages]]
    named = {name for text in sources for name in re.findall(r'"/static/([^"]+)"', text)}
    assert {"css/layout.css", "js/login.js"} <= named
    assert {name for name in named if f'"{name}"' not in kept} == set()


def test_javascript_tests_pass() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed; the page runs without it, its tests do not")
    if node_version(node) < NODE_NEEDED:
        pytest.skip(f"node is older than {NODE_NEEDED[0]}.{NODE_NEEDED[1]}")
    files = [str(path) for path in sorted(TESTS.rglob("*.test.js"))]
    assert files
    tested = subprocess.run(
        [node, "--test", *files], capture_output=True, text=True, timeout=120, check=False
    )
    assert tested.returncode == 0, tested.stdout[-8000:] + tested.stderr[-2000:]


def import_map() -> str:
    page = (STATIC / "index.html").read_text()
    found = re.search(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found.group(1)
