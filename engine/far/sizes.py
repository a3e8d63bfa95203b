"""How much a client on another machine may say at once, so that its reading holds up nobody long.

The core reads a message in 10 ms for each MiB of token ids, and in a hundred times that where each
byte is a list of its own: so only token ids may be many.
"""

import msgspec

from engine.ipc import AddRequest
from engine.sampling_params import SamplingParams

MAX_BYTES = 2 * 1024 * 1024  # of a message: 400,000 token ids of five bytes
MAX_OTHER_BYTES = 320 * 1024  # of it without its token ids: more than the longest grammar
MAX_EXTRA_ARGS_BYTES = 32 * 1024  # of what may be anything, and is looked through

_FIELDS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ADD = msgspec.msgpack.encode("add")
_PARAMS, *_IDS = (
    1 + AddRequest.__struct_fields__.index(name)
    for name in ("params", "prompt_token_ids", "resume_token_ids")
)
_EXTRA_ARGS = SamplingParams.__struct_fields__.index("extra_args")


def check_size(payload: bytes) -> None:
    """Raise ValueError for a message that is too large. What is no message is another's to say."""
    if len(payload) > MAX_BYTES:
        raise ValueError(f"a message of {len(payload)} bytes: from afar it has at most {MAX_BYTES}")
    if len(payload) <= MAX_EXTRA_ARGS_BYTES:
        return
    fields = [bytes(field) for field in _FIELDS.decode(payload)]
    num_others = len(payload)
    if fields[:1] == [_ADD]:
        num_others -= sum(len(fields[place]) for place in _IDS if place < len(fields))
        params = _FIELDS.decode(fields[_PARAMS]) if _PARAMS < len(fields) else []
        if any(len(bytes(it)) > MAX_EXTRA_ARGS_BYTES for it in params[_EXTRA_ARGS:][:1]):
            raise ValueError(f"from afar extra_args have at most {MAX_EXTRA_ARGS_BYTES} bytes")
    if num_others > MAX_OTHER_BYTES:
        problem = f"{num_others} bytes besides token ids: from afar a message has at most"
        raise ValueError(f"{problem} {MAX_OTHER_BYTES}")
