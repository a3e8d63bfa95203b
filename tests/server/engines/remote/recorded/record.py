"""Write down what real engines say: `python -m tests.server.engines.remote.recorded.record`.

    record.py vllm http://127.0.0.1:8000 --core PID   of `vllm serve FOLDER --served-model-name m
                                                      --api-key recorded --enable-scale-out`
    record.py vllm-plain http://…                     of the same without --enable-scale-out
    record.py llamacpp http://…                       of `llama-server --alias m --api-key recorded
                                                      --metrics --slots`

All of them serve the built-in model, whose answers are short. The file named after the engine is
written anew. `--core` is the process VLLM::EngineCore, which is killed amid the last answer.
"""

import argparse
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from engine import SamplingParams, StructuredOutputsParams
from engine.client.text.tokenizer import Tokenizer
from engine.ipc import AddRequest
from server.engines.remote.dialects.vllm import VLLM
from server.engines.remote.wire.exchange import Call
from tests.helpers.root import ROOT
from tests.server.engines.remote.recorded.exchanges import HERE

KEY = "recorded"
SECONDS = 120.0  # an engine may compile something with its first answer
DEMO = ROOT / "engine" / "demo"
QUESTION = "<|im_start|>user\nWho lives in the village?<|im_end|>\n<|im_start|>assistant\n"
PROBE = "<|im_start|>user\nDon't ask 12 times: naïve 🙂?<|im_end|>\n"
SNOWMAN, SNOWMEN = "Say: ☃", "☃☃ ok"  # three tokens each, which are no text by themselves
SAMPLED: Mapping[str, Any] = {"max_tokens": 5, "temperature": 0.7, "top_k": 8, "seed": 1 << 63 | 5}
FORM = StructuredOutputsParams(choice=["yes", "no"])
NO_FORM = StructuredOutputsParams(regex="(")
ENTRIES = ("vllm:num_requests_", "vllm:kv_cache_usage", "vllm:cache_config_info")  # of metrics


class Recorder:
    """Asks one engine, and keeps what both sides have said."""

    def __init__(self, url: str) -> None:
        self.url, address = url, urlsplit(url)
        self._address = (address.hostname or "", address.port or 80)
        self.entries: dict[str, dict[str, Any]] = {}

    def ask(
        self,
        name: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        key: str | None = KEY,
        on_first: Callable[[], object] | None = None,
        keep: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Record one exchange. `on_first` is called when the first event has come."""
        request = self._request(path, body, key)
        with closing(socket.create_connection(self._address, SECONDS)) as connection:
            connection.sendall(request)
            reply = b""
            while part := connection.recv(1 << 16):
                reply += part
                if on_first is not None and b"data: " in reply:
                    on_first, first = None, on_first
                    threading.Thread(target=first).start()
        self.entries[name] = {
            "request": request.decode(),
            "reply": keep(reply).decode().splitlines(keepends=True),
        }

    def _request(self, path: str, body: Mapping[str, Any] | None, key: str | None) -> bytes:
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: {self._address[0]}:{self._address[1]}",
            "Connection: close",
        ]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        payload = b"" if body is None else orjson.dumps(body)
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        return "\r\n".join([*lines, "", ""]).encode() + payload


def record_vllm(
    engine: Recorder, ids: Callable[[str], list[int]], kill_core: Callable[[], object]
) -> None:
    question = ids(QUESTION)
    ask = _asker(engine, has_token_route=True)
    record_facts(engine)
    ask("length", "r1", question, max_tokens=4)
    ask("logprobs", "r2", question, max_tokens=3, logprobs=2)
    ask("end", "r3", question, max_tokens=200)
    ask("sampled", "r4", question, **SAMPLED)
    ask("no such token", "r5", [99_999], max_tokens=4)
    ask("form", "r6", question, max_tokens=3, structured_outputs=FORM)
    ask("no such form", "r7", question, structured_outputs=NO_FORM)
    vllm, other = _dialect(has_token_route=True), Recorder(engine.url)  # whose record is not kept
    abort, none = vllm.abort("r8"), Call("/inference/v1/abort_requests", {"request_ids": []})
    assert abort is not None
    ask(
        "aborted",
        "r8",
        question,
        max_tokens=4000,
        ignore_eos=True,
        on_first=lambda: other.ask("abort", abort.path, abort.body),
    )
    engine.ask("abort of none", none.path, none.body)
    ask("no key", "r9", question, key=None)
    call = vllm.call(_request(question), "r10")
    engine.ask("no such model", call.path, {**(call.body or {}), "model": "x"})
    ask("core killed", "r11", question, max_tokens=4000, ignore_eos=True, on_first=kill_core)
    engine.ask("health of a dead core", "/health")


def record_vllm_plain(engine: Recorder, ids: Callable[[str], list[int]], _: object) -> None:
    question = ids(QUESTION)
    ask = _asker(engine, has_token_route=False)
    record_facts(engine)
    engine.ask("abort of none", "/inference/v1/abort_requests", {"request_ids": []})
    ask("length", "r1", question, max_tokens=4)
    ask("end", "r2", question, max_tokens=200)
    ask("sampled", "r3", question, **SAMPLED)
    ask("no such token", "r4", [99_999], max_tokens=4)
    ask("form", "r5", question, max_tokens=3, structured_outputs=FORM)


def _asker(engine: Recorder, *, has_token_route: bool) -> Callable[..., None]:
    """Asks as our own dialect does."""

    def ask(name: str, request_id: str, prompt: list[int], **options: Any) -> None:
        own = {key: options.pop(key) for key in ("key", "on_first") if key in options}
        call = _dialect(has_token_route=has_token_route).call(
            _request(prompt, **options), request_id
        )
        engine.ask(name, call.path, call.body, **own)

    return ask


def _dialect(*, has_token_route: bool) -> VLLM:
    """As it is after a probe of such a server."""
    vllm = VLLM(Tokenizer(DEMO), None)
    vllm.join("m", 8192, has_token_route=has_token_route)
    return vllm


def _request(prompt: list[int], **params: Any) -> AddRequest:
    given = {"temperature": 0.0, **params}
    return AddRequest("r", prompt, SamplingParams(**given), arrival_time=0.0)


def record_facts(engine: Recorder) -> None:
    engine.ask("health", "/health")
    engine.ask("models", "/v1/models")
    engine.ask("no key for models", "/v1/models", key=None)
    body = {"model": "m", "prompt": PROBE, "add_special_tokens": False}
    engine.ask("tokenize", "/tokenize", body)
    engine.ask("metrics", "/metrics", keep=some_lines)


def some_lines(reply: bytes) -> bytes:
    """Of metrics, most of which are histograms, the lines that say something."""
    head, _, body = reply.partition(b"\r\n\r\n")
    wanted = [line for line in body.splitlines(keepends=True) if line.startswith(_entries())]
    body = b"".join(wanted)
    fields = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-len")]
    return b"\r\n".join([*fields, b"content-length: %d" % len(body), b"", body])


def _entries() -> tuple[bytes, ...]:
    return tuple(entry.encode() for entry in ENTRIES)


def record_llamacpp(engine: Recorder, ids: Callable[[str], list[int]], _: object) -> None:
    def complete(prompt: list[int], **params: Any) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "temperature": 0.0,
            **params,
        }

    path, question = "/completion", ids(QUESTION)
    for name in ("health", "props", "slots", "metrics"):
        engine.ask(name, f"/{name}")
    engine.ask("models", "/v1/models")
    body = {"content": PROBE, "add_special": False, "parse_special": True}
    engine.ask("tokenize", "/tokenize", body)
    engine.ask("length", path, complete(question, n_predict=4))
    engine.ask("logprobs", path, complete(question, n_predict=3, n_probs=2))
    engine.ask("progress", path, complete(question * 50, n_predict=2, return_progress=True))
    engine.ask("end", path, complete(question, n_predict=200))
    halves = complete(ids(SNOWMAN), n_predict=8, grammar=f'root ::= "{SNOWMEN}"')
    engine.ask("halves", path, halves)
    engine.ask("halves whole", path, {**halves, "stream": False})
    engine.ask("no such token", path, complete([99_999], n_predict=4))
    engine.ask("no such form", path, complete(question, n_predict=4, grammar="root ::= ("))
    engine.ask("too long", path, complete([9] * 8_200, n_predict=4))
    engine.ask("no key", path, complete(question, n_predict=4), key=None)


RECORDINGS = {
    "vllm": record_vllm,
    "vllm-plain": record_vllm_plain,
    "llamacpp": record_llamacpp,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", choices=RECORDINGS)
    parser.add_argument("url")
    parser.add_argument("--core", type=int, help="the process to kill, for vllm")
    given = parser.parse_args()
    tokenizer = Tokenizer(DEMO)
    recorder = Recorder(given.url)
    RECORDINGS[given.engine](
        recorder,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
        lambda: os.kill(given.core, signal.SIGKILL),
    )
    path: Path = HERE / f"{given.engine}.json"
    path.write_text(json.dumps(recorder.entries, indent=1, ensure_ascii=False) + "\n")
    for name, entry in recorder.entries.items():
        print(f"{name}: {entry['reply'][0].strip()}, {sum(map(len, entry['reply']))} characters")


if __name__ == "__main__":
    main()
