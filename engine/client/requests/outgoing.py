"""What leaves for the core must be readable there.

The core gives up a client that sends it something unreadable, and with it all requests of that
client. So all that a caller gave is tried here first, and refused with the caller's own error.
"""

import msgspec

from engine.errors import ValidationError
from engine.ipc import (
    MAX_MESSAGE_BYTES,
    AddRequest,
    ClientMessage,
    Utility,
    decode_client_message,
    encode,
)
from engine.sampling_params import SamplingParams, cannot_be_sent

MAX_ABORTED_IDS = 1000  # in one message: ids may be long


def pack(message: ClientMessage) -> bytes:
    """A message as bytes. `ValidationError` if it is too long, or holds what has no encoding."""
    try:
        payload = encode(message)
    except Exception as error:  # types, surrogates, integers, depth
        raise cannot_be_sent(error, type(message), _given_by_caller(message)) from None
    if len(payload) > MAX_MESSAGE_BYTES:
        problem = f"this makes a message of {len(payload)} bytes, of at most {MAX_MESSAGE_BYTES}"
        raise ValidationError(problem, _given_by_caller(message))
    return payload


def check_readable(message: AddRequest | Utility) -> None:
    """Raise `ValidationError` if the core could not read this."""
    payload = pack(message)
    try:
        decode_client_message(payload)
    except NotImplementedError:  # an absent feature: its name says more than a field that is wrong
        raise
    except Exception as error:
        raise cannot_be_sent(error, type(message)) from None


def check_request(request: AddRequest) -> None:
    """As `check_readable`, for a request whose ids are known to be integers: most of it are ids."""
    check_readable(msgspec.structs.replace(request, prompt_token_ids=[], resume_token_ids=[]))


def check_extra_args(params: SamplingParams) -> None:
    """Raise `ValidationError` if the core could not read these, whose contents are the caller's."""
    try:
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(params.extra_args))
        if decoded is not None and not all(isinstance(key, str) for key in decoded):
            raise TypeError("its keys must be strings")
    except Exception as error:  # types, surrogates, depth
        raise ValidationError(f"extra_args cannot be sent: {error}", "extra_args") from None


def _given_by_caller(message: ClientMessage) -> str:
    return "args" if isinstance(message, Utility) else "request"
