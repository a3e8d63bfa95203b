"""The page of a share: what strangers read of it, and that all words of users are escaped text."""

import zlib
from collections.abc import Mapping
from html.parser import HTMLParser

import orjson

from server.api.shares.page import RefusalPage, SharePage
from server.protocol.errors import ApiError
from sessions.store.shares import Share
from tests.helpers.root import ROOT

STATIC = ROOT / "static"
MARKUP = "</title><script>alert(1)</script>&\"'$title ${messages} {title}"


def message(role: str, text: str, status: str = "completed") -> dict[str, object]:
    return {"role": role, "content": [{"type": "text", "text": text}], "status": status}


async def page_of(*messages: Mapping[str, object], title: str = "Tides") -> str:
    lines = b"".join(orjson.dumps(one) + b"\n" for one in messages)
    share = Share("shr_secret", title, 1_795_640_000_000, zlib.compress(lines), "ada")
    return b"".join([part async for part in SharePage(STATIC).of(share)]).decode()


class Elements(HTMLParser):
    """Collects every tag, and the text in each element that holds no other."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self._is_open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.texts.append((dict(attrs).get("class") or tag, ""))
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            name, before = self.texts[-1]
            self.texts[-1] = (name, before + data)

    def text(self, name: str) -> list[str]:
        return [text for found, text in self.texts if found == name]


async def test_a_page_names_the_product_the_chat_and_the_day() -> None:
    found = Elements(await page_of(message("user", "Why?")))
    assert found.text("title") == ["Tides · Parley"] and found.text("h1") == ["Tides"]
    assert found.text("time") == ["25 November 2026"]
    assert found.text("primary continue") == ["Continue this chat in Parley"]


async def test_every_message_can_be_read_without_a_script() -> None:
    found = Elements(
        await page_of(
            message("user", "Why?\n\n  So?"),
            message("assistant", "# Since\n"),
            message("assistant", "half", "interrupted"),
            message("assistant", "", "failed"),
        )
    )
    assert found.text("bubble source") == ["Why?\n\n  So?"]
    assert found.text("prose source") == ["# Since\n", "half", ""]
    assert found.text("chip interrupted") == ["Unfinished"]
    assert found.text("chip failed") == ["Failed"]


async def test_fenced_code_is_set_as_code_and_stays_as_it_was_written() -> None:
    page = await page_of(
        message("assistant", "See:\n```py\na < b\n```\nand\n~~~\nopen ```\nto the end")
    )
    assert (
        'auto">See:\n<code dir="ltr">```py\na &lt; b\n```</code>\nand\n'
        '<code dir="ltr">~~~\nopen ```\nto the end</code></div>'
    ) in page


async def test_what_users_and_models_wrote_is_text_only() -> None:
    plain = Elements(await page_of(message("user", "Why?"), message("assistant", "So.")))
    page = await page_of(message("user", MARKUP), message("assistant", MARKUP), title=MARKUP)
    found = Elements(page)
    assert found.tags == plain.tags
    assert found.text("bubble source") == found.text("prose source") == [MARKUP]
    assert found.text("h1") == [MARKUP]
    assert found.text("title") == [f"{MARKUP} · Parley"]


async def test_a_page_tells_no_id_and_no_owner() -> None:
    page = await page_of(message("user", "Why?"))
    assert "shr_secret" not in page and "ada" not in page


async def test_a_chat_without_a_title_has_one_on_its_page() -> None:
    assert Elements(await page_of(title="")).text("h1") == ["A conversation"]


def test_a_refusal_says_why_and_what_may_be_done() -> None:
    page = RefusalPage(STATIC).of(ApiError("not_found", "there is <nothing>"))
    assert "There is &lt;nothing&gt;." in page and "Ask the person who sent it" in page
    busy = RefusalPage(STATIC).of(ApiError("queue_full", "too many readers"))
    assert "Too many readers." in busy and "Try again in a moment" in busy


async def test_calls_and_what_they_gave_back_are_text() -> None:
    call = {"call_id": "c", "name": "<b>", "arguments": '{"a": "<i>"}', "status": "completed"}
    calling = {**message("assistant", "I look."), "tool_calls": [call]}
    part = {"type": "text", "text": "<u>rain</u>", "call_id": "c"}
    given = {"role": "tool", "content": [part], "status": "completed"}
    found = Elements(page := await page_of(message("user", "Hi"), calling, given))
    assert found.text("prose source") == ["I look."]
    assert found.text("call-name") == ["<b>"]
    assert found.text("call-arguments") == ['{"a": "<i>"}']
    assert found.text("call-output") == ["<u>rain</u>"]
    assert found.tags.count("article") == 2 and 'data-call="completed"' in page
    assert not {"b", "i", "u"} & set(found.tags)


async def test_the_page_shows_what_became_of_a_call_that_the_server_ran() -> None:
    call = {"call_id": "c", "name": "clock__now", "arguments": "{}", "status": "completed"}
    run = {
        "call_id": "c",
        "status": 'den"ied',
        "code": "tool_denied",
        "output": "The user said no.",
    }
    calling = {**message("assistant", ""), "tool_calls": [call], "tool_outputs": [run]}
    page = await page_of(message("user", "Hi"), calling)
    assert 'data-run="den&quot;ied" data-code="tool_denied"' in page
    assert Elements(page).text("call-output") == ["The user said no."]
    assert Elements(page).text("prose source") == []
