"""The page's files: what may be kept for how long, and in which form they are sent."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from server.api.rest.pages import Static, accepted_encodings

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
    assert library.headers["cache-control"] == "public, max-age=31536000, immutable"
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


# ---- a bundle, which brings its compressed forms -------------------------------------------------

BUNDLE = "js/main-7Q2XK4TB.js"
KEPT = "public, max-age=31536000, immutable"


@pytest.fixture
def bundle(folder: Path) -> Path:
    """A bundle whose forms say which they are."""
    (folder / "js").mkdir()
    for path in (BUNDLE, f"{BUNDLE}.map", "index.html"):
        (folder / path).write_text(path)
        (folder / f"{path}.br").write_text(f"br of {path}")
        (folder / f"{path}.gz").write_bytes(gzip.compress(path.encode()))
    return folder


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("br;q=0,gzip;q=0.000", None),
        ("identity", None),
    ],
)
async def test_a_bundle_is_sent_in_the_smallest_of_its_forms_that_is_accepted(
    bundle: Path, site: httpx2.AsyncClient, accepted: str, encoding: str | None
) -> None:
    names = {"Accept-Encoding": accepted}
    async with site.stream("GET", f"/static/{BUNDLE}", headers=names) as answer:
        sent = b"".join([part async for part in answer.aiter_raw()])
    suffix = {"br": ".br", "gzip": ".gz", None: ""}[encoding]
    assert sent == (bundle / f"{BUNDLE}{suffix}").read_bytes()
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["cache-control"] == KEPT


@pytest.mark.usefixtures("bundle")
async def test_bundles_and_their_maps_are_kept_for_ever_and_pages_are_not(
    site: httpx2.AsyncClient,
) -> None:
    for path, kept in ((BUNDLE, KEPT), (f"{BUNDLE}.map", KEPT), ("index.html", "no-cache")):
        answer = await get(site, path)
        assert (answer.text, answer.headers["cache-control"]) == (path, kept)
        known = await get(site, path, If_None_Match=answer.headers["etag"])
        assert (known.status_code, known.headers["vary"]) == (304, "Accept-Encoding")
        assert "content-encoding" not in known.headers


@pytest.mark.usefixtures("bundle")
async def test_a_form_has_no_address_of_its_own_and_an_old_bundle_is_gone(
    site: httpx2.AsyncClient,
) -> None:
    for path in (f"{BUNDLE}.br", f"{BUNDLE}.gz", "js/main-2222AAAA.js"):
        missing = await get(site, path)
        assert missing.status_code == 404
        assert "cache-control" not in missing.headers


def test_an_encoding_is_accepted_unless_its_weight_is_nothing() -> None:
    assert accepted_encodings("gzip, br;q=0.9, Deflate ; q=0") == {"gzip", "br"}
    assert accepted_encodings("br;q=0.001, gzip; q=0.0") == {"br"}
