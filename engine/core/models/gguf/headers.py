"""The tensors of a GGUF file under the names that a checkpoint gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.gguf.link import GgufLink
from engine.folder.gguf.parts import read_parts
from engine.folder.gguf.tensors import ROPE_FACTORS, checkpoint_name, num_interleaved_heads
from engine.folder.gguf.types import READABLE, BlockType
from engine.folder.weight_headers import StoredTensor


@dataclass(frozen=True, slots=True)
class GgufTensor(StoredTensor):
    """One tensor of blocks. `dtype` is the name of its type in ggml, F16 as well as Q4_K."""

    name: str  # in a checkpoint
    type: BlockType
    num_interleaved_heads: int  # whose rows are in another order than in a checkpoint; 0: none are

    @property
    def num_rows(self) -> int:
        """A vector is one row."""
        return self.num_bytes // self.row_bytes

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.shape[-1])


def read_gguf_headers(link: GgufLink, config: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """What the files hold, by the names of a checkpoint. Raises `UnsupportedModelError`.

    `config` is the config.json that was made of them.
    """
    found: dict[str, GgufTensor] = {}
    for name, (file, info) in read_parts(link.files, with_arrays=False).tensors.items():
        if name == ROPE_FACTORS:  # config.json says what they stand for
            continue
        own = checkpoint_name(name)
        if own is None or own in found or info.type.name not in READABLE:
            raise UnsupportedModelError(f"{file}: {name!r} is no weight that we know")
        found[own] = GgufTensor(
            file=file,
            dtype=info.type.name,
            shape=info.shape,
            num_bytes=info.num_bytes,
            start=info.start,
            name=own,
            type=info.type,
            num_interleaved_heads=num_interleaved_heads(name, config),
        )
    return found
