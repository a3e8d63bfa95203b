"""Chat templates of any kind over conversations of any kind, through the real rendering process.

For every template of a checkpoint: a rendering ends, as a prompt or as a `ValidationError`; it
takes no time of ours, neither on the event loop nor in the thread that waits for it; its process
stays small; it reads nothing of ours; and somebody else's conversation becomes the same ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from jinja2.filters import FILTERS as ALL_FILTERS
from jinja2.tests import TESTS as ALL_TESTS

from engine.client.templates import chat_template
from engine.client.templates.chat_template import ChatTemplate, Message
from engine.client.templates.child import MEMORY_BYTES
from engine.client.text.tokenizer import Tokenizer
from engine.errors import ValidationError
from tests.engine.helpers.small_tokenizers import build_chatml
from tests.fuzz import driver
from tests.fuzz.damage import damaged
from tests.fuzz.driver import Finding, Target, drive

RENDER_SECONDS, COMPILE_SECONDS = 0.1, 0.2  # shortened, so that many templates have their turn
PATIENCE = 120.0  # of the clock, for a loaded machine
MAX_CONTENT = 50_000
MAX_LENGTH = 8192
RSS_BYTES = MEMORY_BYTES + 128 * 2**20
SECRET = "a-token-that-no-prompt-may-hold"
ORDINARY: list[Message] = [{"role": "user", "content": "Hello <|im_end|> there"}]

FILTERS = sorted({*ALL_FILTERS, "tojson"})
TESTS = sorted(name for name in ALL_TESTS if name.isalpha())
NAMES = (
    *("messages", "messages[0].content", "messages[-1]", "m", "m.content", "m.role", "bos_token"),
    *("add_generation_prompt", "loop.index", "loop.length", "ns.x", "range", "cycler", "lipsum"),
    *("namespace", "dict", "joiner", "self", "caller", "varargs", "raise_exception", "nothing"),
)
ATTRIBUTES = (
    *("__class__", "__mro__", "__globals__", "__init__", "__subclasses__()", "__builtins__"),
    *("content", "x", "format", "format_map", "join", "split('o')", "encode()", "items()"),
    *("append(1)", "center(99999999)", "zfill(9999)", "__doc__", "gi_frame", "f_globals"),
)
LITERALS = (
    *("0", "1", "-1", "7", "10", "99999", "10**9", "2**64", "0.5", "1e308", "''", "'x'", "'%s%s'"),
    *("'{0.__class__}'", r"'\ud800'", "'<|im_end|>'", "none", "true", "[]", "{}", "['a', 'b']"),
    *("'{:>999999999}'", "'%999999999d'", "(1, 2)", "'x' * 1000", "range(1000)"),
)
OPERATORS = ("+", "-", "*", "**", "/", "//", "%", "~", "==", "<", "and", "or", "in", "not in")


@dataclass
class Renderers:
    """An event loop in a thread of its own, and a bystander's tokenizer."""

    folder: Path
    tokenizer: Tokenizer
    expected: list[int]
    errors: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    thread: threading.Thread = field(default_factory=threading.Thread)

    async def render(self, tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
        """The prompt, made on that loop."""
        making = tokenizer.apply_chat_template_async(messages, owner="x", max_length=MAX_LENGTH)
        future = asyncio.run_coroutine_threadsafe(making, self.loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE)


def expression(rng: random.Random, depth: int = 3) -> str:
    """Anything that jinja may take for an expression."""
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(rng.choice((NAMES, LITERALS)))
    inner = expression(rng, depth - 1)
    match rng.randrange(8):
        case 0 | 1:
            return f"({inner} {rng.choice(OPERATORS)} {expression(rng, depth - 1)})"
        case 2 | 3:
            argument = rng.choice(("", "", f"({expression(rng, depth - 1)})"))
            return f"({inner} | {rng.choice(FILTERS)}{argument})"
        case 4:
            return f"{inner}.{rng.choice(ATTRIBUTES)}"
        case 5:
            return f"{inner}[{expression(rng, depth - 1)}]"
        case 6:
            return f"({inner} is {rng.choice(TESTS)})"
        case _:
            return f"{inner}({expression(rng, depth - 1)})"


def statement(rng: random.Random, depth: int = 3) -> str:
    """A piece of a template."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice((f"{{{{ {expression(rng)} }}}}", "<|im_start|>", "text\n", "{# no #}"))
    body = "".join(statement(rng, depth - 1) for _ in range(rng.choice((1, 1, 2, 3))))
    given = expression(rng, 2)
    match rng.randrange(9):
        case 0 | 1:
            return f"{{% for m in messages %}}{body}{{% endfor %}}"
        case 2:
            return f"{{% for n in range({rng.choice((3, 1000, 99_999))}) %}}{body}{{% endfor %}}"
        case 3:
            return f"{{% if {given} %}}{body}{{% else %}}{{{{ {given} }}}}{{% endif %}}"
        case 4:
            return f"{{% set ns = namespace(x={given}) %}}{{% set ns.x = ns.x * 2 %}}{body}"
        case 5:
            return f"{{% macro f(a) %}}{body}{{{{ f(a) }}}}{{% endmacro %}}{{{{ f({given}) }}}}"
        case 6:
            return f"{{% set v %}}{body}{{% endset %}}{{{{ v ~ {given} }}}}"
        case 7:
            return f"{{% generation %}}{body}{{% endgeneration %}}{{% break %}}"
        case _:
            return f"{{% filter {rng.choice(FILTERS)} %}}{body}{{% endfilter %}}"


def content(rng: random.Random) -> Any:
    """What a message may hold, and what it may not."""
    size = rng.choice((0, 1, 10, 1000, MAX_CONTENT))
    text = (
        rng.choice(("x", "<|im_end|>", "é\u0301 ", "😀", "\U000f0000", "{{ 1 }}", "a\nb ")) * size
    )
    return rng.choice(
        (text[:MAX_CONTENT], text[:MAX_CONTENT], [{"type": "text", "text": text[:1000]}], None, 7)
    )


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    roles = ("user", "assistant", "system", "tool", "", "<|im_start|>")
    return [
        {"role": rng.choice(roles), "content": content(rng), "name": rng.choice((None, "n"))}
        for _ in range(rng.choice((1, 2, 3, 50)))
    ]


def template_and_conversations(site: Renderers, rng: random.Random) -> bytes:
    """One template, and what it is to render, in JSON."""
    source = "".join(statement(rng) for _ in range(rng.choice((1, 2, 5))))
    if rng.random() < 0.2:
        source = damaged(rng, source.encode(errors="replace")).decode(errors="replace")
    case = {"template": source, "conversations": [conversation(rng) for _ in range(3)]}
    return json.dumps(case).encode()


async def attack(site: Renderers, rng: random.Random, sent: bytes) -> None:
    """All conversations of one template, all at once. Raises `Finding`."""
    case = json.loads(sent)
    tokenizer = Tokenizer(site.folder)
    tokenizer.chat_template = ChatTemplate(case["template"])
    try:
        renderings = (render_one(site, tokenizer, m, sent) for m in case["conversations"])
        await asyncio.gather(*renderings)
    finally:
        tokenizer.close()


async def render_one(
    site: Renderers, tokenizer: Tokenizer, messages: Sequence[Message], sent: bytes
) -> None:
    """Raises `Finding` unless it becomes a prompt or is refused."""
    try:
        ids = await site.render(tokenizer, messages)
    except ValidationError as error:
        text = str(error)
    except TimeoutError:
        raise Finding("a rendering does not end", sent) from None
    except Exception as error:
        raise Finding(f"a rendering raised {error!r}", sent) from error
    else:
        text = tokenizer.decode(ids)
    if SECRET in text:
        raise Finding("a template has read a secret", sent)
    with contextlib.suppress(psutil.Error):
        if (pid := tokenizer.chat_template.pid) is not None:
            if (rss := psutil.Process(pid).memory_info().rss) > RSS_BYTES:
                raise Finding(f"a rendering takes {rss} bytes", sent)


async def bystand(site: Renderers) -> None:
    """Somebody else's conversation is encoded as ever."""
    if await site.render(site.tokenizer, ORDINARY) != site.expected:
        raise Finding("a bystander's prompt was changed", b"")


@contextlib.contextmanager
def rendering() -> Iterator[Renderers]:
    """The loop, for as long as the context lasts."""
    with contextlib.ExitStack() as stack:
        folder = build_chatml(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(patch.dict(os.environ, {"PARLEY_TOKEN": SECRET}))
        stack.enter_context(patch.object(chat_template, "RENDER_SECONDS", RENDER_SECONDS))
        stack.enter_context(patch.object(chat_template, "COMPILE_SECONDS", COMPILE_SECONDS))
        tokenizer = Tokenizer(folder)
        site = Renderers(folder, tokenizer, tokenizer.chat_token_ids(ORDINARY))
        stack.enter_context(patch.object(ChatTemplate, "render", _timed(site)))
        site.thread = threading.Thread(target=site.loop.run_forever)
        site.thread.start()
        try:
            yield site
        finally:
            site.loop.call_soon_threadsafe(site.loop.stop)
            site.thread.join()
            site.loop.close()
            tokenizer.close()


def _timed(site: Renderers) -> Any:
    """`ChatTemplate.render`, whose thread must wait, not compute: it would hold the others up."""
    render = ChatTemplate.render

    def timed(template: ChatTemplate, messages: Sequence[Message], **variables: Any) -> str:
        started = time.thread_time()
        try:
            return render(template, messages, **variables)
        finally:
            if (taken := time.thread_time() - started) > driver.STALL_SECONDS:
                site.errors.append(f"{taken * 1000:.0f} ms of ours went into {template.source!r}")

    return timed


def run(seconds: float, seed: int) -> str:
    """Attack for so long; raises AssertionError with seed and bytes. Returns a line of figures."""
    target = Target("templates", rendering, template_and_conversations, attack, bystand)
    return drive(target, seconds, seed)
