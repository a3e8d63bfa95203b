"""What a GGUF file says that it is, and the reasons why one is refused."""

from pathlib import Path

import pytest
from gguf import GGUFWriter, LlamaFileType

from engine.folder.caches.found import Found
from engine.folder.caches.gguf_description import FILE_TYPES, describe_gguf
from engine.folder.caches.local_model import LocalModel
from tests.engine.helpers.gguf.gguf_files import Edit, write_gguf


def described(file: Path) -> LocalModel:
    return describe_gguf(Found("x", file, gguf=(file,)), file.stat().st_size)


def test_types_of_files_are_those_of_llama_cpp() -> None:
    names = {kind.value: kind.name.partition("_")[2] for kind in LlamaFileType}
    assert {number: names[number] for number in FILE_TYPES} == FILE_TYPES


@pytest.mark.parametrize(("said", "shown"), [(None, "F16"), (15, "Q4_K_M"), (9999, "F16")])
def test_the_format_is_what_the_file_says_else_what_most_of_it_is(
    tiny: Path, tmp_path: Path, said: int | None, shown: str
) -> None:
    def edit(writer: GGUFWriter) -> None:
        if said is not None:
            writer.add_file_type(said)

    model = described(write_gguf(tiny, tmp_path / "a.gguf", "F16", edit=edit))
    assert model.format == f"GGUF {shown}"


def _foreign_tokenizer(writer: GGUFWriter) -> None:
    del writer.kv_data[0]["tokenizer.ggml.pre"]
    writer.add_tokenizer_pre("unheard-of")


def _foreign_architecture(writer: GGUFWriter) -> None:
    del writer.kv_data[0]["general.architecture"]
    writer.add_string("general.architecture", "gemma3\x1b[2J")
    writer.add_uint32("gemma3\x1b[2J.context_length", 8192)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (_foreign_tokenizer, "cuts texts into words by the rules 'unheard-of'"),
        (_foreign_architecture, r"is of the architecture 'gemma3\x1b[2J'; those read here are"),
        (lambda writer: writer.add_logit_scale(8), "llama.logit_scale is set"),
    ],
)
def test_a_model_that_would_be_refused_has_the_same_reason(
    tiny: Path, tmp_path: Path, edit: Edit, says: str
) -> None:
    file = write_gguf(tiny, tmp_path / "a.gguf", edit=edit)
    model = described(file)
    assert model.runs is False
    assert str(model.problem).startswith(says)
    assert model.context_length in (512, 8192)
    assert model.size_bytes == file.stat().st_size
