import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import demo_model
from engine.config import CoreIdentity, EngineConfig
from engine.ipc import Ready
from server import __version__
from server.engines.native.far.check import FarCheck, identity_of
from server.engines.native.far.options import FarOptions
from server.engines.native.fingerprint import has_weights, model_fingerprint, texts_fingerprint

IDENTITY = CoreIdentity(version=__version__, model="weights", texts="texts")


def options(**fields: Any) -> FarOptions:
    given: dict[str, Any] = {"keys": "/k", "identity": IDENTITY, "has_weights": True}
    return FarOptions(**(given | fields))


def ready(
    identity: CoreIdentity | None = IDENTITY,
    *,
    computes: dict[str, str] | None = None,
    **settings: Any,
) -> Ready:
    config = EngineConfig(model="", address="", served_model_name="", identity=identity, **settings)
    given: dict[str, Any] = {
        "epoch": 1,
        "pid": 0,
        "max_model_len": 100,
        "num_blocks": 10,
        "block_size": 16,
        "vocab_size": 100,
        "eos_token_ids": [0],
        "max_num_seqs": 8,
        "dtype": "bfloat16",
        "attn_backend": "cpu",
        "pace": 0.0,
        "config": config,
    }
    return Ready(**(given | (computes or {})))


def other(**fields: str) -> CoreIdentity:
    return msgspec.structs.replace(IDENTITY, **fields)


def test_a_core_that_is_alike_is_taken_again_and_again() -> None:
    check = FarCheck(options(quantize="int8"))
    for _ in range(3):
        assert check(ready(quantization="int8")) is None


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (ready(None), "it was not started by `parley core`"),
        (ready(other(version="9.9")), f"it is Parley 9.9, and this server {__version__}"),
        (ready(other(texts="x")), "tokenizer and configuration are x there and texts here"),
        (ready(other(model="x")), "it has other weights: x there and weights here"),
        (ready(quantization="int4"), "its setting quantize is int4, and here none"),
        (ready(kv_cache_dtype="int8"), "its setting kv_cache_dtype is int8, and here auto"),
        (ready(dtype="float32"), "its setting dtype is float32, and here auto"),
        (ready(computes={"dtype": "float32"}), None),
    ],
)
def test_a_core_that_writes_other_answers_is_refused_in_one_line(
    found: Ready, problem: str | None
) -> None:
    refusal = FarCheck(options())(found)
    if problem is None:
        assert refusal is None  # the model decides its type, where nobody says it
    else:
        assert refusal is not None and "\n" not in refusal
        assert problem.removeprefix("it has ") in refusal


def test_where_no_weights_lie_here_those_of_the_first_core_count() -> None:
    check = FarCheck(options(has_weights=False))
    assert check(ready(other(model="first"))) is None
    refusal = check(ready(other(model="second")))
    assert refusal is not None and "otherwise than before" in refusal
    assert check(ready(other(model="first"))) is None


def test_the_next_core_computes_as_the_first_one() -> None:
    check = FarCheck(options())
    assert check(ready(computes={"computes": "cpu, float32"})) is None
    refusal = check(ready(computes={"computes": "cpu, bfloat16"}))
    assert refusal is not None and "otherwise than before" in refusal


def test_the_identity_of_a_folder_is_that_of_its_copy_and_texts_need_no_weights(
    tmp_path: Path,
) -> None:
    copy = shutil.copytree(demo_model(), tmp_path / "copy")
    assert identity_of(copy) == identity_of(demo_model())
    assert has_weights(copy)
    for path in copy.glob("*.safetensors"):
        path.unlink()
    (copy / "model.safetensors.index.json").write_text("{}")
    (copy / "LICENSE").write_text("free")
    assert not has_weights(copy)
    assert texts_fingerprint(copy) == texts_fingerprint(demo_model())
    assert model_fingerprint(copy) != model_fingerprint(demo_model())
    (copy / "tokenizer_config.json").write_text("{}")
    assert texts_fingerprint(copy) != texts_fingerprint(demo_model())
