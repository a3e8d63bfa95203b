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

from tokenizers import Tokenizer

from tests.helpers.root import ROOT
from tests.server.engines.remote.recorded.exchanges import HERE

KEY = "recorded"
SECONDS = 120.0  # an engine may compile something with its first answer
DEMO = ROOT / "engine" / "demo"
QUESTION = "<|im_start|>user\nWho lives in the village?<|im_end|>\n<|im_start|>assistant\n"
PROBE = "<|im_start|>user\nDon't ask 12 times: naïve 🙂?<|im_end|>\n"
SNOWMAN = "Say: ☃☃☃☃☃☃"  # three tokens each, which are no text by themselves
ENTRIES = ("vllm:num_requests_", "vllm:kv_cache_usage", "vllm:cache_config_info")  # of metrics


class Recorder:
    """Asks one engine, and keeps what both sides have said."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
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
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        return "\r\n".join([*lines, "", ""]).encode() + payload


def record_vllm(
    engine: Recorder, ids: Callable[[str], list[int]], kill_core: Callable[[], object]
) -> None:
    def generate(request_id: str, prompt: list[int], **params: Any) -> dict[str, Any]:
        given = {"temperature": 0.0, "detokenize": False, **params}
        return {
            "request_id": request_id,
            "model": "m",
            "token_ids": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "sampling_params": given,
        }

    path, question = "/inference/v1/generate", ids(QUESTION)
    record_facts(engine)
    engine.ask("length", path, generate("r1", question, max_tokens=4))
    engine.ask("logprobs", path, generate("r2", question, max_tokens=3, logprobs=2))
    engine.ask("end", path, generate("r3", question, max_tokens=200))
    engine.ask("no such token", path, generate("r4", [99_999], max_tokens=4))
    engine.ask("no such parameter", path, generate("r5", question, top_p=7))
    engine.ask("no such model", path, {**generate("r6", question, max_tokens=4), "model": "x"})
    schema = {"json": {"type": "object", "required": ["a"], "properties": {"a": {"const": 1}}}}
    engine.ask("form", path, generate("r7", question, max_tokens=20, structured_outputs=schema))
    bad = {"regex": "("}
    engine.ask("no such form", path, generate("r8", question, structured_outputs=bad))
    endless = generate("r9", question, max_tokens=4000, ignore_eos=True, stream_interval=5)
    named = {"request_ids": ["generate-tokens-r9"]}
    other = Recorder(f"http://{engine._address[0]}:{engine._address[1]}")
    engine.ask(
        "aborted",
        path,
        endless,
        on_first=lambda: other.ask("abort", "/inference/v1/abort_requests", named),
    )
    engine.entries.update(other.entries)
    engine.ask("abort of none", "/inference/v1/abort_requests", {"request_ids": []})
    engine.ask("no key", path, generate("r10", question, max_tokens=4), key=None)
    endless = generate("r11", question, max_tokens=4000, ignore_eos=True)
    engine.ask("core killed", path, endless, on_first=kill_core)
    engine.ask("health of a dead core", "/health")


def record_vllm_plain(engine: Recorder, ids: Callable[[str], list[int]], _: object) -> None:
    def complete(request_id: str, prompt: list[int], **params: Any) -> dict[str, Any]:
        return {
            "request_id": request_id,
            "model": "m",
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "temperature": 0.0,
            **params,
        }

    path, question = "/v1/completions", ids(QUESTION)
    record_facts(engine)
    engine.ask("abort of none", "/inference/v1/abort_requests", {"request_ids": []})
    engine.ask("length", path, complete("r1", question, max_tokens=4))
    engine.ask("end", path, complete("r2", question, max_tokens=200))
    engine.ask("no such token", path, complete("r3", [99_999], max_tokens=4))
    engine.ask("too long", path, complete("r4", question, max_tokens=100_000))


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
    bias = [[token, 100.0] for token in ids("☃")]
    engine.ask("halves", path, complete(ids(SNOWMAN), n_predict=7, logit_bias=bias))
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
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    recorder = Recorder(given.url)
    RECORDINGS[given.engine](
        recorder,
        lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
        lambda: os.kill(given.core, signal.SIGKILL),
    )
    path: Path = HERE / f"{given.engine}.json"
    path.write_text(json.dumps(recorder.entries, indent=1, ensure_ascii=False) + "\n")
    for name, entry in recorder.entries.items():
        print(f"{name}: {entry['reply'][0].strip()}, {sum(map(len, entry['reply']))} characters")


if __name__ == "__main__":
    main()
