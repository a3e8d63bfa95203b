"""Tokenizers on their way into a GGUF file and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer

from engine.folder.gguf.head import read_head
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.vocabulary.tokenizer import make_tokenizer
from tests.engine.helpers.gguf.gguf_files import Edit, add_tokenizer

ThereAndBack = Callable[..., tuple[Tokenizer, dict[str, Any]]]


@pytest.fixture
def there_and_back(tmp_path: Path) -> ThereAndBack:
    """Write the tokenizer of a folder to a file, with rows to spare, and make one of the file."""

    def travel(
        folder: Path, num_rows: int, pre: str = "default", edit: Edit | None = None
    ) -> tuple[Tokenizer, dict[str, Any]]:
        file = tmp_path / "tokenizer.gguf"
        writer = GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA])
        add_tokenizer(writer, folder, num_rows, pre)
        if edit is not None:
            edit(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return make_tokenizer(Metadata(file, read_head(file).metadata), num_rows)

    return travel
