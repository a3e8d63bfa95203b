"""What browsers are shown of a share link: static/share.html with the conversation in it.

The text stands in the page as it is, escaped, so that it can be read without scripts. With them
static/js/share/ draws it as the chat page would, calls of tools as cards.
"""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import escape
from itertools import chain, pairwise
from pathlib import Path
from string import Template
from typing import Any

import orjson

from server.protocol.errors import ApiError
from sessions.store.shares import Share

UNTITLED = "A conversation"
MESSAGES = "$messages"  # the place of them in the file
# What may be done about a link that is refused: under a title.
NOT_FOUND = (
    "This link shows no chat",
    "The link may be incomplete, or the chat may no longer be shared. "
    "Ask the person who sent it to you.",
)
LATER = ("This chat cannot be shown now", "Try again in a moment.")
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_CHIPS = {"interrupted": "Unfinished", "failed": "Failed"}  # how a message ended, if not well


class SharePage:
    """The page of every share."""

    def __init__(self, static: Path) -> None:
        head, _, self._foot = (static / "share.html").read_text().partition(MESSAGES)
        self._head = Template(head)

    async def of(self, share: Share) -> AsyncIterator[bytes]:
        """The page in parts."""
        shared_at = datetime.fromtimestamp(share.shared_at / 1000, UTC)
        yield self._head.substitute(
            title=escape(share.title or UNTITLED),
            time=f"{shared_at:%Y-%m-%dT%H:%MZ}",
            date=f"{shared_at.day} {shared_at:%B %Y}",
        ).encode()
        messages = map(orjson.loads, share.messages())
        for message, following in pairwise(chain(messages, (None,))):
            if message["role"] != "tool":  # that stands in the calls before it
                yield _article(message, following).encode() + b"\n"
        yield self._foot.encode()


class RefusalPage:
    """The page of a link that shows nothing."""

    def __init__(self, static: Path) -> None:
        self._page = Template((static / "share-refused.html").read_text())

    def of(self, error: ApiError) -> str:
        reason = error.message[:1].upper() + error.message[1:]
        title, advice = NOT_FOUND if error.http_status == 404 else LATER
        return self._page.substitute(title=title, reason=escape(reason), advice=advice)


def _article(message: dict[str, Any], following: dict[str, Any] | None) -> str:
    text = "\n\n".join(part["text"] for part in message["content"])
    status = message["status"]
    chip = (
        f'<span class="chip {escape(status)}">{_CHIPS[status]}</span>' if status in _CHIPS else ""
    )
    foot = f'<footer class="foot">{chip}</footer>' if chip else ""
    if message["role"] == "user":
        kind, label, body = "question", "Question", "bubble"
    else:
        kind, label, body = "answer", "Answer", "prose"
    calls = _calls(message, following)
    words = (
        f'<div class="{body} source" dir="auto">{_source(text)}</div>' if text or not calls else ""
    )
    return f'<article class="message {kind}" aria-label="{label}">{words}{calls}{foot}</article>'


def _calls(message: dict[str, Any], following: dict[str, Any] | None) -> str:
    """The tools that it has called, with what they gave back, if the message after it says that."""
    parts = following["content"] if following is not None and following["role"] == "tool" else ()
    given = {part.get("call_id"): part["text"] for part in parts}
    ran = {item["call_id"]: item for item in message.get("tool_outputs") or ()}
    calls = []
    for call in message.get("tool_calls") or ():
        run = ran.get(call.get("call_id"), {})
        output = run.get("output") or given.get(call.get("call_id"))
        how = {"call": call.get("status"), "run": run.get("status"), "code": run.get("code")}
        data = "".join(f' data-{name}="{escape(value)}"' for name, value in how.items() if value)
        texts = {"name": call["name"], "arguments": call["arguments"], "output": output}
        words = "".join(
            f'<code class="call-{name}" dir="ltr">{escape(text)}</code>'
            for name, text in texts.items()
            if text
        )
        calls.append(f'<div class="call"{data}>{words}</div>')
    return f'<div class="calls source">{"".join(calls)}</div>' if calls else ""


def _source(text: str) -> str:
    """The text as it is, with fenced code set as code: no character more or less."""
    parts = []
    place = 0
    for fenced in _FENCED.finditer(text):
        parts.append(escape(text[place : fenced.start()]))
        parts.append(f'<code dir="ltr">{escape(fenced[0])}</code>')
        place = fenced.end()
    return "".join((*parts, escape(text[place:])))
