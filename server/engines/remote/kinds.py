"""The kinds of engine at an address. Each module is imported where such an engine is asked."""

from typing import TYPE_CHECKING

from server.engines.remote.kind import RemoteKind

if TYPE_CHECKING:
    from engine.client.text.tokenizer import Tokenizer
    from server.engines.remote.dialect import Dialect


def _vllm(tokenizer: "Tokenizer", model: str | None) -> "Dialect":
    from server.engines.remote.vllm import VLLM

    return VLLM(tokenizer, model)


def _sglang(tokenizer: "Tokenizer", model: str | None) -> "Dialect":
    from server.engines.remote.sglang import SGLang

    return SGLang(tokenizer, model)


def _llamacpp(tokenizer: "Tokenizer", model: str | None) -> "Dialect":
    from server.engines.remote.llamacpp import LlamaCpp

    return LlamaCpp(tokenizer, model)


REMOTE_KINDS = {
    "vllm": RemoteKind("vllm", _vllm),
    "sglang": RemoteKind("sglang", _sglang),
    "llamacpp": RemoteKind("llamacpp", _llamacpp),
}
