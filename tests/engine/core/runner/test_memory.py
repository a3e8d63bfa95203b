"""What a runner gives back and takes again: no bit of an answer may differ afterwards."""

import os
import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.models.checkpoint import check_folder, file_stamps
from engine.core.models.loader import load_model
from engine.core.runner.memory import RunnerMemory
from engine.core.tensors import huge_pages
from engine.errors import UnsupportedModelError
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

TAGS = ("weights", "kv_cache")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


class Sleeper:
    """An engine that can sleep between two steps."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        checkpoint = check_folder(folder, needs_weights=settings.get("load_format") != "dummy")
        stamps = file_stamps(checkpoint)
        self.engine = SteppedEngine(folder, keeps_logits=True, **settings)
        self.runner = self.engine.runner
        given, ops = self.runner.config, self.runner.loaded.context.ops
        self.memory = RunnerMemory(self.runner, lambda: load_model(given, ops), checkpoint, stamps)
        self.memory.start_warming(lambda: True)

    def give_back(self, level: int) -> None:
        self.engine.scheduler.preempt_all()
        self.engine.scheduler.blocks.reset_cache()
        self.memory.give_back(level)

    def sleep_and_wake(self, level: int, tags: tuple[str, ...] = TAGS) -> None:
        self.give_back(level)
        for tag in tags:
            self.memory.take_again(tag)

    def close(self) -> None:
        self.memory.give_back(1)  # which ends the thread


def answers(sleeper: Sleeper, naps: Sequence[tuple[int, tuple[str, ...]]]) -> Any:
    """Tokens, logits and logprobs of some prompts, with naps among their steps."""
    engine = sleeper.engine
    for number, prompt in enumerate(make_prompts()):
        engine.add(str(number), prompt, logprobs=3)
    for level, tags in naps:
        for _ in range(5):
            engine.step()
        sleeper.sleep_and_wake(level, tags)
    engine.run()
    logits = {name: torch.stack(rows) for name, rows in engine.logits.items()}
    result = dict(engine.tokens), logits, dict(engine.logprobs)
    for kept in (engine.tokens, engine.logits, engine.logprobs):
        kept.clear()
    return result


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0] and found[2] == expected[2]
    assert found[1].keys() == expected[1].keys()
    assert all(torch.equal(found[1][name], expected[1][name]) for name in expected[1])


KINDS = [
    pytest.param("llama", {}, id="fused"),
    pytest.param("qwen3", {"dtype": "bfloat16"}, id="fused bfloat16"),
    pytest.param(
        "qwen2",
        {"quantization": "int8", "kv_cache_dtype": "int8"},
        marks=pytest.mark.slow,
        id="fused int8",
    ),
    pytest.param("llama", {"quantization": "int4"}, id="fused int4"),
    pytest.param("gpt2", {}, id="packed layers"),
    pytest.param("gpt2", {"quantization": "int8"}, marks=pytest.mark.slow, id="packed layers int8"),
    pytest.param("qwen3_moe", {}, marks=pytest.mark.slow, id="experts"),
    pytest.param("llama", {"load_format": "dummy"}, marks=pytest.mark.slow, id="random weights"),
]


@needs_kernels
@pytest.mark.parametrize(("family", "settings"), KINDS)
def test_answers_are_the_same_bits_after_every_kind_of_sleep(
    family: str, settings: dict[str, Any], folders: Folders
) -> None:
    sleeper = Sleeper(folders(family), **settings)
    expected = answers(sleeper, [])
    naps = [(1, TAGS), (2, TAGS), (2, ("kv_cache", "weights"))]
    assert_same(answers(sleeper, naps), expected)
    assert sleeper.engine.scheduler.totals.preemptions > 0
    sleeper.close()


def tensors_of(sleeper: Sleeper) -> Iterator[Tensor]:
    loaded = sleeper.runner.loaded
    yield from loaded.model.parameters()
    for name, buffer in loaded.model.named_buffers():
        if name.endswith(("panels", "scales")):
            yield buffer
    if loaded.fused is not None:
        assert loaded.fused.loaded is not None  # type: ignore[union-attr]  # it is the CPU's
        # It is the CPU's decoder here, which alone has these.
        for part in loaded.fused.loaded.tensors:  # type: ignore[union-attr]
            yield from part if isinstance(part, list) else () if part is None else (part,)


@needs_kernels
@pytest.mark.parametrize(("family", "settings"), KINDS)
def test_nothing_holds_what_was_given_back(
    family: str, settings: dict[str, Any], folders: Folders
) -> None:
    """By reference counts alone: the core freezes what the garbage collector would find."""
    sleeper = Sleeper(folders(family), **settings)
    answers(sleeper, [])
    caches = [weakref.ref(cache) for cache in sleeper.runner.caches()]
    real = [tensor for tensor in tensors_of(sleeper) if not tensor.is_meta]
    assert real and all(ref() is not None for ref in caches)
    held = [weakref.ref(tensor) for tensor in real]
    del real
    sleeper.give_back(1)
    assert not any(ref() for ref in caches)
    sleeper.give_back(2)
    left = [tensor for ref in held if (tensor := ref()) is not None and not tensor.is_meta]
    assert not left
    assert all(weight.is_meta for weight in sleeper.runner.loaded.model.parameters())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_changed_files_are_refused_until_they_are_as_before(
    name: str, folders: Folders, tmp_path: Path
) -> None:
    folder = families_in(tmp_path)("llama")
    sleeper = Sleeper(folder)
    expected = answers(sleeper, [])
    sleeper.give_back(2)
    file, stamp = folder / name, (folder / name).stat().st_mtime_ns
    os.utime(file, ns=(stamp, stamp + 1))
    with pytest.raises(UnsupportedModelError, match=f"{name}: has changed since"):
        sleeper.memory.take_again("weights")
    file.rename(folder / "elsewhere")
    with pytest.raises(UnsupportedModelError, match=f"{name}: is gone since"):
        sleeper.memory.take_again("weights")
    (folder / "elsewhere").rename(file)
    os.utime(file, ns=(stamp, stamp))
    for tag in TAGS:
        sleeper.memory.take_again(tag)
    assert_same(answers(sleeper, []), expected)
    sleeper.close()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    folder = families_in(tmp_path)("llama")
    sleeper = Sleeper(folder)
    sleeper.give_back(2)
    load = sleeper.memory._load

    def change() -> Any:
        loaded = load()
        os.utime(folder / "model.safetensors", ns=(1, 1))
        return loaded

    sleeper.memory._load = change
    with pytest.raises(UnsupportedModelError, match="has changed"):
        sleeper.memory.take_again("weights")
    sleeper.close()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_cache_without_memory_is_an_error_and_may_be_tried_again(
    family: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = Sleeper(folders(family))
    expected = answers(sleeper, [])
    sleeper.give_back(1)
    with monkeypatch.context() as patch:
        zeros, calls = huge_pages.zeros, count(1)

        def give_every_other(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            if next(calls) % 2 == 0:
                raise MemoryError("no")
            return zeros(shape, dtype)

        patch.setattr(huge_pages, "zeros", give_every_other)
        with pytest.raises(UnsupportedModelError, match="no memory for"):
            sleeper.memory.take_again("kv_cache")
        assert next(calls) == 3
        # What came is in nobody's way at the next attempt.
        assert all(layer.key_cache is None for layer in sleeper.runner.loaded.layers)
    sleeper.memory.take_again("kv_cache")
    assert_same(answers(sleeper, []), expected)
    sleeper.close()
