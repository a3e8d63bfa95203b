"""Each fuzz target finds what it is for, where that is planted."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from engine.client.templates.chat_template import ChatTemplate
from server.access.rates import TokenBucket
from server.worker import bounded_h11, http_protocol, websocket_protocol
from tests.end_to_end.frames.raw import request
from tests.fuzz import driver, fuzz_http, fuzz_templates, fuzz_websocket
from tests.fuzz.driver import Target, drive
from tests.fuzz.site import Site, serving
from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.slow

PLANTED_SECONDS = 0.03  # of one read; what is not planted takes 6 ms


def flood_of_chunks(site: Site, rng: random.Random) -> bytes:
    return request(site, "POST", "/read", fuzz_http.HEADERS[:1], b"1\r\n \r\n" * 60_000)


def test_the_http_target_finds_a_parser_that_reads_every_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_h11, "FREE_CHUNKS", 10**9)
    monkeypatch.setattr(http_protocol, "HTTP_PIECE_BYTES", 10**9)
    monkeypatch.setattr(driver, "STALL_SECONDS", PLANTED_SECONDS)
    # Each round has what random conversations have now and then, so that few of them will do.
    flood = Target("http", serving, flood_of_chunks, fuzz_http.attack, fuzz_http.bystand)
    with pytest.raises(AssertionError, match=r"http, round \d+, seed 1: \d+ ms"):
        drive(flood, PATIENCE, 1)


def test_the_websocket_target_finds_a_parser_that_reads_every_fragment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endless(self: Any) -> bool:
        return True

    monkeypatch.setattr(TokenBucket, "take", endless)
    monkeypatch.setattr(websocket_protocol, "WEBSOCKET_PIECE_BYTES", 10**9)
    monkeypatch.setattr(driver, "STALL_SECONDS", PLANTED_SECONDS)
    with pytest.raises(AssertionError, match=r"websocket, round \d+, seed 1: \d+ ms"):
        fuzz_websocket.run(60.0, 1)


def test_the_template_target_finds_templates_that_are_rendered_in_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def render(self: ChatTemplate, messages: Any, **variables: Any) -> str:
        end = time.thread_time() + 2 * PLANTED_SECONDS
        while time.thread_time() < end:
            pass
        return "text"

    monkeypatch.setattr(ChatTemplate, "render", render)
    monkeypatch.setattr(driver, "STALL_SECONDS", PLANTED_SECONDS)
    with pytest.raises(AssertionError, match=r"templates, round \d+, seed 1: \d+ ms"):
        fuzz_templates.run(60.0, 1)
