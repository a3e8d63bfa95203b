import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType

from engine.client.text.tokenizer import Tokenizer
from engine.errors import UnsupportedModelError
from engine.folder.gguf import derived
from engine.folder.gguf.derived import derive_folder
from engine.folder.gguf.link import LINK, cache_folder, read_link
from tests.engine.helpers.gguf.gguf_files import Edit, write_gguf
from tests.engine.helpers.greedy_oracle import Folders
from tests.helpers.tiny_model import CHAT_TEMPLATE


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.fixture
def file(checkpoint: Folders, tmp_path: Path) -> Path:
    return write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf")


def test_folder_says_what_the_checkpoint_says(
    checkpoint: Folders, file: Path, tmp_path: Path
) -> None:
    folder, original = derive_folder(file), checkpoint("llama")
    config, before = read(folder, "config.json"), read(original, "config.json")
    for name in config.keys() - {"head_dim"}:
        assert config[name] == before[name], name
    assert config["head_dim"] == 16
    made = read(folder, "tokenizer_config.json")
    assert made["chat_template"] == CHAT_TEMPLATE
    assert made["eos_token"] == "<|endoftext|>"
    assert made["model_max_length"] == 512
    messages = [{"role": "user", "content": "Hello <|im_end|> there"}]
    ids = [Tokenizer(each).chat_token_ids(messages) for each in (folder, original)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")],
)
def test_type_of_most_weights_is_the_models(
    checkpoint: Folders, tmp_path: Path, kind: str, dtype: str
) -> None:
    file = write_gguf(checkpoint("qwen3"), tmp_path / "tiny.gguf", kind)
    assert read(derive_folder(file), "config.json")["dtype"] == dtype


def test_folder_is_private_and_kept(file: Path, cache: Path) -> None:
    folder = derive_folder(file)
    assert folder.parent == cache / "parley" / "gguf"
    assert folder.name.startswith("tiny-")
    for each in (folder, folder.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    before = (folder / "tokenizer.json").stat().st_mtime_ns
    assert derive_folder(file) == folder
    assert (folder / "tokenizer.json").stat().st_mtime_ns == before
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    link = read_link(folder)
    assert link is not None
    assert link.files == (file,)


def test_changed_file_has_another_folder_and_the_old_one_is_refused(file: Path) -> None:
    folder = derive_folder(file)
    os.utime(file, ns=(1, 1))
    with pytest.raises(UnsupportedModelError, match=r"tiny\.gguf: has changed since"):
        read_link(folder)
    assert derive_folder(file) != folder


@pytest.mark.parametrize("name", ["ä b.gguf", "\n.gguf", "x" * 200 + ".gguf", "..gguf"])
def test_file_may_have_any_name(file: Path, name: str) -> None:
    folder = derive_folder(file.rename(file.with_name(name)))
    assert read_link(folder) is not None
    assert len(folder.name) < 128 and folder.name.isascii() and folder.name.isprintable()


def test_file_that_is_gone_is_named(file: Path) -> None:
    folder = derive_folder(file)
    file.unlink()
    with pytest.raises(UnsupportedModelError, match=r"tiny\.gguf: is missing"):
        read_link(folder)


@pytest.mark.parametrize("name", derived.MADE)
def test_damaged_folder_is_made_anew(file: Path, name: str) -> None:
    folder = derive_folder(file)
    before = (folder / name).read_text()
    (folder / name).write_text("")
    assert derive_folder(file) == folder
    assert (folder / name).read_text() == before
    assert len(list(folder.parent.iterdir())) == 1


def test_many_may_make_it_at_once(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(derive_folder, [file] * 8))
    (folder,) = folders
    assert sorted(each.name for each in folder.iterdir()) == sorted(derived.MADE)
    assert len(list(folder.parent.iterdir())) == 1


@pytest.mark.parametrize("is_made", [True, False])
def test_place_that_others_may_write_to_is_refused(file: Path, cache: Path, is_made: bool) -> None:
    place = cache / "parley" / "gguf"
    if is_made:
        derive_folder(file)
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    with pytest.raises(UnsupportedModelError, match="others may write there; XDG_CACHE_HOME"):
        derive_folder(file)


def test_place_that_cannot_be_is_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "tiny.gguf"))
    with pytest.raises(UnsupportedModelError, match=r"cannot be written \(Not a directory\)"):
        derive_folder(file)


def test_without_a_setting_it_is_the_cache_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "parley" / "gguf"


def test_somebody_elses_folder_names_no_files_here(file: Path, tmp_path: Path) -> None:
    link = (derive_folder(file) / LINK).read_text()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / LINK).write_text(link)
    assert read_link(tmp_path / "theirs") is None


def text(key: str, value: str) -> Edit:
    return lambda writer: writer.add_string(key, value)


def number(key: str, value: int) -> Edit:
    return lambda writer: writer.add_uint32(key, value)


def renamed(writer: GGUFWriter) -> None:
    writer.kv_data[0]["general.architecture"].value = "mamba"


def dropped(key: str) -> Edit:
    def edit(writer: GGUFWriter) -> None:
        del writer.kv_data[0][key]

    return edit


def replaced(key: str, value: object) -> Edit:
    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0][key].value = value

    return edit


KINDS = [TokenType.NORMAL] * 3
FAULTS: dict[str, tuple[Edit, str]] = {
    "architecture": (renamed, "is of the architecture 'mamba'; those read here are arcee, cohere2"),
    "no architecture": (dropped("general.architecture"), "general.architecture is missing"),
    "scale": (number("llama.logit_scale", 8), "llama.logit_scale is set, which is not computed"),
    "experts": (number("llama.expert_count", 8), "llama.expert_used_count is missing"),
    "alibi": (number("llama.attention.max_alibi_bias", 8), "llama.attention.max_alibi_bias is set"),
    "yarn": (text("llama.rope.scaling.type", "yarn"), "rotary positions by 'yarn', which is not"),
    "part of a head": (replaced("llama.rope.dimension_count", 8), "rotates 8 of the 16 numbers"),
    "width of values": (replaced("llama.attention.value_length", 8), "values of another width"),
    "no layers": (dropped("llama.block_count"), "llama.block_count is missing"),
    "layers": (replaced("llama.block_count", 10**9), "llama.block_count must be from 1 to 10000"),
    "a layer more": (
        replaced("llama.block_count", 4),
        "lacks 9 weights, first blk.3.attn_k.we",
    ),
    "a layer less": (replaced("llama.block_count", 2), "holds 'blk.2."),
    "no heads": (replaced("llama.attention.head_count", 0), "llama.attention.head_count must be"),
    "heads": (replaced("llama.attention.head_count", 3), "3 heads of 16 numbers, 2 for keys"),
    "width": (replaced("llama.feed_forward_length", 95), "and its metadata [64, 95]"),
    "epsilon": (replaced("llama.attention.layer_norm_rms_epsilon", float("nan")), "must be a num"),
    "theta": (replaced("llama.rope.freq_base", -1.0), "llama.rope.freq_base must be above 0"),
    "eos": (replaced("tokenizer.ggml.eos_token_id", 99_999), "must be below vocab_size"),
    "no tokenizer": (dropped("tokenizer.ggml.model"), "tokenizer.ggml.model is None"),
    "tokenizer": (replaced("tokenizer.ggml.model", "rwkv"), "is 'rwkv'; those read here are gpt2"),
    "words": (replaced("tokenizer.ggml.pre", "new-bpe"), "by the rules 'new-bpe'; known are"),
    "no tokens": (dropped("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
    "more tokens": (replaced("tokenizer.ggml.tokens", ["a"] * 500), "has 500 tokens, the embeddi"),
    "a token twice": (replaced("tokenizer.ggml.tokens", ["a"] * 384), "tokens holds 'a' twice"),
    "few kinds": (replaced("tokenizer.ggml.token_type", KINDS), "has 3 kinds, there are 384"),
    "no merges": (dropped("tokenizer.ggml.merges"), "tokenizer.ggml.merges is missing"),
    "merges": (replaced("tokenizer.ggml.merges", ["ab"]), "merges holds 'ab', which is no pair"),
    "unknown merges": (replaced("tokenizer.ggml.merges", ["q 東"]), "tokenizer.ggml: "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_one_line_that_names_the_file(
    checkpoint: Folders, tmp_path: Path, name: str
) -> None:
    edit, says = FAULTS[name]
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", edit=edit)
    with pytest.raises(UnsupportedModelError) as refused:
        derive_folder(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_without_weights_is_no_model(checkpoint: Folders, tmp_path: Path) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "vocab.gguf", with_weights=False)
    with pytest.raises(UnsupportedModelError, match=r"has no token_embd\.weight; is it a vocab"):
        derive_folder(file)


def test_ends_of_answers_are_those_that_are_named_and_those_that_are_known(
    checkpoint: Folders, tmp_path: Path
) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_eot_token_id(5)

    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", edit=edit)
    made = read(derive_folder(file), "generation_config.json")
    assert made["eos_token_id"] == [0, 5, 2]  # eos, eot, <|im_end|>
