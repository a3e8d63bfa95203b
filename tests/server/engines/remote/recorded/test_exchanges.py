"""What the recordings hold is what the engines have sent: heads, frames and all."""

import json

import pytest

from tests.server.engines.remote.recorded.exchanges import Exchange, recorded

ENGINES = ("vllm", "vllm-plain", "llamacpp")
STREAMS = [
    pytest.param(exchange, id=f"{engine}-{name}")
    for engine in ENGINES
    for name, exchange in recorded(engine).items()
    if exchange.content_type.startswith("text/event-stream")
]


@pytest.mark.parametrize("exchange", STREAMS)
def test_each_event_of_a_recorded_stream_is_json_or_its_end(exchange: Exchange) -> None:
    assert len(exchange.events) == exchange.body.count(b"data: ") >= 2
    assert all(event == b"[DONE]" or json.loads(event) for event in exchange.events)
    assert json.loads(exchange.asked)["stream"] is True


@pytest.mark.parametrize("engine", ENGINES)
def test_no_recorded_reply_has_lost_a_byte(engine: str) -> None:
    for name, exchange in recorded(engine).items():
        head, _, body = exchange.reply.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if b"content-length:" in line]
        assert length or body.endswith(b"\r\n0\r\n\r\n"), name
        assert not length or int(length[0].partition(b":")[2]) == len(body), name


def test_what_llamacpp_says_of_a_prompts_progress_names_a_token_that_is_none() -> None:
    progress = [json.loads(event) for event in recorded("llamacpp")["progress"].events]
    early = [event for event in progress if "prompt_progress" in event]
    assert [event["tokens"] for event in early] == [[0]] * len(early) != []
    assert {event["tokens_predicted"] for event in early} == {0}


def test_vllm_tells_of_a_request_that_it_refuses_with_status_200() -> None:
    for name, code in (("no such token", 400), ("no such form", 400)):
        refused = recorded("vllm")[name]
        assert refused.status == 200
        assert json.loads(refused.events[0])["error"]["code"] == code
    assert json.loads(recorded("vllm")["core killed"].events[-2])["error"]["code"] == 500
