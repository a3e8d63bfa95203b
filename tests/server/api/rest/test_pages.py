"""The page's files: what may be kept for how long, and in which form they are sent."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from server.api.rest.pages import Static

SCRIPT = "const words = 1;\n" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vendor" / "library-1.2.0").mkdir(parents=True)
    (tmp_path / "vendor" / "library-1.2.0" / "library.js").write_text(SCRIPT)
    (tmp_path / "page.js").write_text(SCRIPT)
    (tmp_path / "font.woff2").write_bytes(b"font")
    return tmp_path


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    app = Starlette(routes=[Mount("/static", Static(directory=folder))])
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://parley") as client:
        yield client


async def get(site: httpx2.AsyncClient, path: str, **headers: str) -> httpx2.Response:
    names = {"Accept-Encoding": "gzip", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return await site.get(f"/static/{path}", headers=names)


async def test_text_is_sent_compressed_to_those_who_take_that(site: httpx2.AsyncClient) -> None:
    small = await get(site, "page.js")
    assert small.headers["content-encoding"] == "gzip" and small.text == SCRIPT
    assert int(small.headers["content-length"]) < len(SCRIPT) / 10
    plain = await get(site, "page.js", Accept_Encoding="identity")
    assert "content-encoding" not in plain.headers and plain.text == SCRIPT
    for answer in (small, plain):
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-type"].startswith("text/javascript")
    assert small.headers["etag"] != plain.headers["etag"]


async def test_each_form_is_known_by_its_own_tag(site: httpx2.AsyncClient, folder: Path) -> None:
    small, plain = await get(site, "page.js"), await get(site, "page.js", Accept_Encoding="")
    tags = [answer.headers["etag"] for answer in (small, plain)]
    assert (await get(site, "page.js", If_None_Match=tags[0])).status_code == 304
    assert (await get(site, "page.js", If_None_Match=tags[1])).status_code == 200
    again = await get(site, "page.js", If_None_Match=tags[1], Accept_Encoding="")
    assert again.status_code == 304
    (folder / "page.js").write_text("const other = 2;\n")
    changed = await get(site, "page.js", If_None_Match=tags[0])
    assert (changed.status_code, changed.text) == (200, "const other = 2;\n")


async def test_what_is_compressed_already_is_sent_as_it_is(site: httpx2.AsyncClient) -> None:
    font = await get(site, "font.woff2")
    assert font.content == b"font" and "content-encoding" not in font.headers


async def test_only_files_whose_folder_names_a_version_are_kept_for_ever(
    site: httpx2.AsyncClient,
) -> None:
    library = await get(site, "vendor/library-1.2.0/library.js")
    assert library.headers["cache-control"] == "max-age=31536000, immutable"
    assert (await get(site, "page.js")).headers["cache-control"] == "no-cache"
    missing = await get(site, "missing.js")
    assert missing.status_code == 404
    assert (await site.post("/static/page.js")).status_code == 405


async def test_the_head_of_an_answer_is_that_of_the_whole(site: httpx2.AsyncClient) -> None:
    names = {"Accept-Encoding": "gzip"}
    head = await site.head("/static/page.js", headers=names)
    whole = await get(site, "page.js")
    for name in ("etag", "content-encoding", "content-length"):
        assert head.headers[name] == whole.headers[name]
