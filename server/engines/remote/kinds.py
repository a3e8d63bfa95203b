"""The kinds of engine at an address. Each module is imported where such an engine is asked."""

from typing import TYPE_CHECKING

from server.engines.remote.kind import RemoteKind

if TYPE_CHECKING:
    from engine.client.text.tokenizer import Tokenizer
    from server.engines.remote.dialects.dialect import Dialect


def _vllm(tokenizer: "Tokenizer", model: str | None, name: str) -> "Dialect":
    from server.engines.remote.dialects.vllm import VLLM

    return VLLM(tokenizer, model, name)


def _sglang(tokenizer: "Tokenizer", model: str | None, name: str) -> "Dialect":
    from server.engines.remote.dialects.sglang import SGLang

    return SGLang(tokenizer, model)


def _llamacpp(tokenizer: "Tokenizer", model: str | None, name: str) -> "Dialect":
    from server.engines.remote.dialects.llamacpp import LlamaCpp

    return LlamaCpp(tokenizer, model)


REMOTE_KINDS = {
    "vllm": RemoteKind("vllm", _vllm),
    "sglang": RemoteKind("sglang", _sglang),
    "llamacpp": RemoteKind("llamacpp", _llamacpp),
}
