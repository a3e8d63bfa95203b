"""`LoRARequest`: low-rank weights to add to the model's for one request, in vLLM's names."""

import errno
import hashlib
import os
import stat
from pathlib import Path

import msgspec

from engine.errors import check_text, refuse

MAX_NAME_CHARACTERS = 1024
MAX_ID = (1 << 63) - 1
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
# What is read of each. The core, which knows layers and rank, mostly allows fewer weights.
MAX_ADAPTER_BYTES = {ADAPTER_FILES[0]: 1 << 20, ADAPTER_FILES[1]: 8 << 30}
_PIECE_BYTES = 1 << 20


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter in PEFT's format. `ValidationError` names a wrong value.

    The number identifies it, among all clients of a core: one number is one folder, until
    `remove_lora`.
    """

    lora_name: str
    lora_int_id: int  # from 1 on
    lora_path: str  # a local folder: adapter_config.json, adapter_model.safetensors
    # SHA-256 of both files, in hex. The engine fills it in; if it is given, it must be right.
    content_hash: str = ""

    def __post_init__(self) -> None:
        for name in ("lora_name", "lora_path", "content_hash"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS:
                problem = f"must be a string of at most {MAX_NAME_CHARACTERS} characters"
                raise refuse(name, value, problem)
            check_text(name, value)
        for name in ("lora_name", "lora_path"):
            if not getattr(self, name) or "\0" in getattr(self, name):
                raise refuse(name, getattr(self, name), "must be a text without null characters")
        if type(self.lora_int_id) is not int or not 1 <= self.lora_int_id <= MAX_ID:
            raise refuse("lora_int_id", self.lora_int_id, "must be an integer of at least 1")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    def located(self, content_hash: str = "") -> "LoRARequest":
        """With an absolute path, which is the same folder for another process."""
        path = str(Path(self.lora_path).expanduser().absolute())
        return msgspec.structs.replace(
            self, lora_path=path, content_hash=content_hash or self.content_hash
        )


def hash_adapter(folder: str | Path) -> str:
    """What the engine will find as the `content_hash` of an adapter's folder.

    Reads both files whole. Raises OSError, also for a link, for what is no regular file and for
    what is longer than `MAX_ADAPTER_BYTES`.
    """
    digest = hashlib.sha256()
    for name in ADAPTER_FILES:
        path, flags = Path(folder) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(path, flags | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):  # it may have no end
                raise OSError(errno.EINVAL, "is no regular file", str(path))
            if status.st_size > MAX_ADAPTER_BYTES[name]:
                problem = f"has {status.st_size} bytes, of at most {MAX_ADAPTER_BYTES[name]}"
                raise OSError(errno.EFBIG, problem, str(path))
            if name == ADAPTER_FILES[0]:  # where it ends, and the weights begin
                digest.update(status.st_size.to_bytes(8, "little"))
            num_left = status.st_size  # it may grow while it is read
            while piece := file.read(min(num_left, _PIECE_BYTES)):
                digest.update(piece)
                num_left -= len(piece)
    return digest.hexdigest()
