"""A wheel holds the page in bundles, which do all that the sources do, and cost a visitor less."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from bench.page.first_visit import first_visit
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import needs_chromium
from tests.end_to_end.site.harness import Server
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import build_oracle_model
from tests.wheel.unpacked_wheel import unpacked_wheel

MAX_REQUESTS = 12
MAX_BYTES = 110_000
FILES = ("tests/end_to_end/browser", "tests/end_to_end/admin/test_admin_page.py")

pytestmark = [
    pytest.mark.slow,
    # A checkout runs without npm; where everything must be there, its absence is a failure.
    pytest.mark.skipif(
        shutil.which("npm") is None and not os.environ.get("TESTS_NEED_INDEX"),
        reason="npm is not installed (apt install npm)",
    ),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def wheel_server(wheel: Path, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", build_oracle_model(tmp_path / "oracle"))
    server.root = wheel
    try:
        yield server.start()
    finally:
        server.close()


def test_a_wheel_holds_bundles_with_maps_and_no_module_of_the_sources(wheel: Path) -> None:
    page = (wheel / "static" / "index.html").read_text()
    assert "importmap" not in page
    named = re.findall(r'(?:src|href)="/(static/[^"]+)"', page)
    bundles = [name for name in named if not name.endswith(".svg")]
    assert len(bundles) <= 4
    for name in bundles:
        assert re.search(r"-[0-9A-Z]{8}\.(js|css)$", name), name
        sources = json.loads((wheel / f"{name}.map").read_text())
        assert all(sources["sourcesContent"])
    assert not (wheel / "static" / "js" / "page.js").exists()
    assert not (wheel / "static" / "bundler").exists()


def test_each_text_lies_there_in_brotli_and_in_gzip(wheel: Path) -> None:
    texts = [
        path
        for path in (wheel / "static").rglob("*")
        if path.suffix in {".css", ".html", ".js", ".map", ".svg"}
    ]
    assert len(texts) > 50
    for path in texts:
        assert gzip.decompress(Path(f"{path}.gz").read_bytes()) == path.read_bytes()
        assert Path(f"{path}.br").is_file(), path


def test_every_library_of_the_page_comes_with_its_licence(wheel: Path) -> None:
    vendored = {path.relative_to(ROOT) for path in (ROOT / "static/vendor").rglob("LICENSE*")}
    assert len(vendored) > 8
    assert {path for path in vendored if not (wheel / path).is_file()} == set()


@needs_chromium
@pytest.mark.browser
async def test_a_first_visit_takes_twelve_requests_and_110_kilobytes_at_most(
    browser: Browser, wheel_server: Server
) -> None:
    visit = await first_visit(browser, wheel_server)
    print(visit)
    assert len(visit.addresses) <= MAX_REQUESTS, visit.addresses
    assert 40_000 < visit.num_bytes <= MAX_BYTES


@needs_chromium
@pytest.mark.browser
def test_the_tests_in_a_browser_pass_on_a_wheel(wheel: Path) -> None:
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *FILES],
        cwd=ROOT,
        env={**os.environ, "TESTS_ROOT": str(wheel)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert tested.returncode == 0, tested.stdout[-8000:]
    assert " passed" in tested.stdout


def test_one_line_says_what_a_bundle_needs_where_npm_is_missing(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    bundler = tmp_path / "static" / "bundler"  # a fresh checkout: esbuild is not there yet
    shutil.copytree(ROOT / "static" / "bundler", bundler)
    bundled = subprocess.run(
        [node, bundler / "bundle.mjs"], env={"PATH": ""}, capture_output=True, text=True
    )
    assert bundled.returncode == 1
    assert bundled.stderr.startswith("To bundle the page, npm is needed")
    assert bundled.stderr.count("\n") == 1
