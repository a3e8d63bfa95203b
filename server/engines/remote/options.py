"""`RemoteOptions`: what a worker must know to join an engine at an address."""

from pathlib import Path

import msgspec

from server.engines.remote.wire.address import RemoteAddress


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor passes it on as builtins."""

    url: str
    folder: str  # of the model's tokenizer
    name: str  # of the model, as clients call it
    key_file: str | None = None
    ca_file: str | None = None
    model: str | None = None  # as the engine calls it; None: it has one
    max_model_len: int | None = None
    max_num_queued_reqs: int | None = None
    answer_format: str | None = None
    stillness_seconds: float = 60.0  # `Intervals.stillness`

    @property
    def address(self) -> RemoteAddress:
        key, ca = self.key_file, self.ca_file
        return RemoteAddress(self.url, Path(key) if key else None, Path(ca) if ca else None)
