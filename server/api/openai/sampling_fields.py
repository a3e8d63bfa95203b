"""What all routes that generate take, by OpenAI's names and some of vLLM's."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from server.commands.stateless.asked import Asked
from server.protocol.client_frames import MAX_INTEGER

MAX_ANSWERS = 16
MAX_STOPS = 16


class StreamOptions(Struct, frozen=True):
    """Of a call that asks for a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: a usage in every chunk, as well
    include_obfuscation: bool | None = None  # nothing is obfuscated here


class SamplingFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of a body; None: not given."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    logit_bias: dict[str, float] | None = None
    # of vLLM
    top_k: Annotated[int, Meta(ge=-1, le=1000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.1, le=10)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    # without effect
    user: str | None = None

    @property
    def asked(self) -> Asked:
        """What is asked for. Raises `ApiError`."""
        raise NotImplementedError  # each route's body says it of its own fields

    @property
    def with_usage(self) -> bool:
        """Whether the stream is to end with a usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def with_running_usage(self) -> bool:
        """Whether each chunk is to have the usage so far, too."""
        options = self.stream_options
        return self.with_usage and options is not None and bool(options.continuous_usage_stats)

    def sampling_settings(self) -> dict[str, Any]:
        """Those that a `response.create` would have as settings, as far as they are given."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": None if self.seed is None else abs(self.seed),
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "max_output_tokens": self.max_tokens,
        }
        return {name: value for name, value in given.items() if value is not None}

    def parameters(self) -> dict[str, Any]:
        """Those that no setting says."""
        given = {
            "logit_bias": self.logit_bias,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
        }
        return {name: value for name, value in given.items() if value is not None}
