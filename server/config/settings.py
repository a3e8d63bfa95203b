"""`Settings`: everything an operator can set, by flag or `PARLEY_*`, validated together, once.

An unknown `PARLEY_*` name is refused with the nearest known one, because a setting that is silently
ignored is worse than none.
"""

import difflib
import ipaddress
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from server.config.engines import NATIVE, EngineEntry, listed_engines, parse_engines
from server.config.intervals import SHORTENED, Intervals
from server.config.limits import MIN_SECRET_CHARACTERS, Limits
from server.config.masking import masked
from server.config.models import DEMO, MAX_MODELS, ModelSource, model_sources, parse_model
from sessions.model.quotas import Quotas

PREFIX = "PARLEY_"
# The binary of the embedded Redis; the instruction set that csrc/cpu/kernels/kernels.cpp takes.
OTHER_NAMES = ("PARLEY_REDIS_SERVER", "PARLEY_CPU_LEVEL")
# Of OpenTelemetry, which has its passwords there.
OTLP_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# Secrets, which a command line would show to every user of the machine; and what is for tests.
ENVIRONMENT_ONLY = ("redis_secret", "token", "admin_token", "testing")
DEMO_PACE = 60.0  # tokens/s of the demo model, which decodes faster than a hand can stop
EXPOSED_LIMITS = {
    "max_connections_per_user": 16,
    "max_connections_per_address": 64,
    "max_handshakes_per_s": 20,
    "max_active_responses_per_user": 4,
}
EXPOSED_TOKENS_PER_DAY = 200_000
CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "attn_backend": ("auto", "cpu", "torch", "flash_attn", "varlen", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantize": ("int8", "int4"),
    "kv_cache_dtype": ("auto", "int8"),
}


AnswerFormat = Literal[  # of engine/client/parsing/formats.py
    "hermes",
    "qwen_xml",
    "glm",
    "llama",
    "mistral_list",
    "mistral",
    "deepseek",
    "deepseek_fenced",
    "harmony",
    "think",
    "plain",
]


class ConfigError(Exception):
    """One line for the operator, naming the setting."""


class Settings(BaseSettings):
    """Each field is an option of `parley serve`, and its description the help text."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    # Where values come from, by name; what is in neither has its default.
    _options: frozenset[str] = PrivateAttr(default=frozenset())
    _from_environment: frozenset[str] = PrivateAttr(default=frozenset())
    _otlp_headers: dict[str, str] = PrivateAttr(default_factory=dict)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    data_dir: Path = Field(Path("data"), description="Directory for sessions and tokens.")
    redis_url: str | None = Field(
        None, description="An existing Redis ≥ 6.2; without it Parley runs its own."
    )
    redis_secret: str | None = Field(
        None, description="A secret that all servers on one Redis share; others are refused."
    )
    redis_timeout_seconds: float = Field(
        1.0,
        ge=0.1,
        le=5.0,
        description="Redis counts as unavailable after this many seconds without a reply.",
    )
    model: Annotated[tuple[str, ...], NoDecode] = Field(
        (DEMO,),
        description="Folder, GGUF file, hub id or a name of `parley models`; `demo` is built in. "
        "Given many times (here separated by commas), each as it is or as NAME=MODEL, they are all "
        "served: the first one by default, the others are loaded when they are asked for.",
    )
    model_idle_seconds: float = Field(
        600.0,
        ge=0,
        le=31_536_000,
        description="A model that is not the default one is let go after this many seconds "
        "without a request; 0 = never.",
    )
    engines: Annotated[tuple[str, ...], NoDecode] = Field(
        (NATIVE,),
        description="What computes the answers, separated by commas: `native*2` are two cores of "
        "our own on this machine, `native=tcp://HOST:PORT;keys=FOLDER` one on another, `KIND=URL` "
        "an engine at an address, of the kind vllm, sglang, llamacpp or openai. Options follow, "
        "such as `;weight=2`.",
    )
    workers: int = Field(1, ge=1, le=64, description="Web processes that share the engines.")
    pace: float | None = Field(
        None,
        ge=0,
        le=100_000,
        description="Tokens per second of each answer, 0 = as fast as possible. "
        "[default: 60 for the demo model, otherwise 0]",
    )
    max_model_len: int | None = Field(
        None,
        ge=16,
        description="Context in tokens; more than the model or memory allows is refused. "
        "[default: what they allow]",
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Answers decoded at once; further ones wait, or users take turns. [default: "
        "64]",
    )
    max_num_queued_reqs: int = Field(
        256,
        ge=0,
        le=100_000,
        description="Answers that may wait for the engine; more are refused. 0 = unlimited.",
    )
    answer_format: AnswerFormat | None = Field(
        None,
        description="How models write their thoughts, the same for all: "
        f"{', '.join(get_args(AnswerFormat))}, which is text alone. "
        "[default: what a checkpoint's files say]",
    )
    kv_cache_memory_bytes: int | None = Field(
        None, ge=1, description="Memory for keys and values. [default: the engine's choice]"
    )
    device: str = Field("auto", description="auto, cpu or cuda; auto is the CPU.")
    attn_backend: str = Field(
        "auto",
        description="Attention library: cpu or torch, on a GPU flash_attn, varlen, cuda or torch. "
        "[default: the best that can compute the model]",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of a GPU's memory for weights, keys, values and steps."
    )
    dtype: str = Field("auto", description="auto, float32, bfloat16 or float16.")
    quantize: str | None = Field(
        None, description="int8 or int4: the weights of linear layers in 8 or 4 bits."
    )
    kv_cache_dtype: str = Field(
        "auto", description="int8: keys and values in 8 bits, for llama, mistral, qwen2 and qwen3."
    )
    token: str | None = Field(
        None, description="Bearer token of the user `local`; generated into the data directory."
    )
    admin_token: str | None = Field(
        None, description="Bearer token of the admin; generated likewise."
    )
    allowed_origins: str = Field(
        "",
        description="Further exact origins that cookies work from, comma-separated "
        "(https://chat.example).",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks whose X-Forwarded-For and -Proto are believed, "
        "comma-separated.",
    )
    drain_seconds: float = Field(
        30.0, ge=0, le=3600, description="Time for running answers to finish when Parley stops."
    )
    ping_seconds: float = Field(
        20.0,
        ge=1,
        le=300,
        description="Time between pings of a websocket, and to wait for a pong before it is "
        "closed.",
    )
    watchdog_seconds: float = Field(
        30.0,
        ge=1,
        le=3600,
        description="An engine is killed and restarted after this many seconds without a sign of "
        "life.",
    )
    restart_seconds: float = Field(
        600.0,
        ge=1,
        le=86_400,
        description="Time for answers to wait for an engine that an administrator has restarted, "
        "or that is not there when their turn comes: at least as long as the model loads.",
    )
    standby_core: bool = Field(
        False,
        description="Keep a second engine process, loaded and without a cache, that takes over at "
        "once when the first dies; it takes memory for the weights again.",
    )
    sleep_after_seconds: float = Field(
        0.0,
        ge=0,
        le=31_536_000,
        description="The engine gives back the memory for keys and values after this many seconds "
        "without a request, until the next one; 0 = never.",
    )
    lora_dir: str | None = Field(
        None,
        description="Folder of LoRA adapters, a folder each, that administrators may load. "
        "[default: no adapters]",
    )
    max_loras: int = Field(
        4, ge=1, le=64, description="Different adapters that are computed at once; others wait."
    )
    max_cpu_loras: int = Field(
        16, ge=1, le=256, description="Adapters in memory; at least as many as at once."
    )
    max_lora_rank: int = Field(16, ge=1, le=512, description="The largest rank of an adapter.")
    tools: Path | None = Field(
        None,
        description="JSON file of the MCP servers whose tools Parley runs; needs the extra "
        "`tools`. [default: no tools]",
    )
    log_level: str = Field("info", description="debug, info, warning or error.")
    log_format: str = Field(
        "auto", description="json, text, or auto: text on a terminal, otherwise json."
    )
    otlp_endpoint: str | None = Field(
        None,
        description="URL of a collector that gets traces by OTLP over HTTP; needs the extra "
        "`tracing`.",
    )
    max_connections: int = Field(
        10_000, ge=0, description="Websockets for each worker; 0 = unlimited."
    )
    max_connections_per_user: int | None = Field(
        None,
        ge=0,
        description="Websockets for each user; 0 = unlimited. [default: 0 on loopback, otherwise "
        "16]",
    )
    max_connections_per_address: int | None = Field(
        None,
        ge=0,
        description="Websockets for each address; 0 = unlimited. [default: 0 on loopback, "
        "otherwise 64]",
    )
    max_handshakes_per_s: int | None = Field(
        None,
        ge=0,
        description="Handshakes for each address; 0 = unlimited. [default: 0 on loopback, "
        "otherwise 20]",
    )
    max_active_responses_per_user: int | None = Field(
        None,
        ge=0,
        description="Answers at a time for each user; 0 = unlimited. [default: 0 on loopback, "
        "otherwise 4]",
    )
    max_tokens_per_day: int | None = Field(
        None,
        ge=0,
        description="Tokens of prompts and answers for each user and day (UTC); 0 = unlimited. "
        "[default: 0 on loopback, otherwise 200000]",
    )
    max_sessions_per_user: int = Field(10_000, ge=0, description="0 = unlimited.")
    max_messages_per_session: int = Field(20_000, ge=0, description="0 = unlimited.")
    max_bytes_per_session: int = Field(
        16 * 1024 * 1024, ge=0, description="For all of its messages; 0 = unlimited."
    )
    session_idle_days: float = Field(
        0.0,
        ge=0,
        le=3650,
        description="Sessions are deleted after this many days without use; 0 keeps them.",
    )
    stored_response_days: float = Field(
        30.0,
        ge=1,
        le=3650,
        description="The same of those that OpenAI's Responses make for themselves; 1 at least.",
    )
    max_answer_seconds: float = Field(
        300.0, ge=0, le=86_400, description="Time to write one answer; 0 = unlimited."
    )
    max_messages_per_s: int = Field(
        20,
        ge=0,
        description="Frames for each connection, with bursts of twice as many; 0 = unlimited.",
    )
    hide_observers: bool = Field(
        False, description="Do not count admins who observe a session among its viewers."
    )
    testing: bool = Field(False, description="Shorter intervals, for tests of Parley only.")

    @field_validator("model", mode="before")
    @classmethod
    def _listed_models(cls, value: object) -> object:
        return model_sources(value) if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _known_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not 1 <= len(value) <= MAX_MODELS:
            raise ValueError(f"from 1 to {MAX_MODELS} models can be served")
        names = [given for text in value if (given := parse_model(text).given_name) is not None]
        if len(set(value)) < len(value) or len(set(names)) < len(names):
            raise ValueError("each model, and each name, can be given once")
        return value

    @field_validator("engines", mode="before")
    @classmethod
    def _listed_engines(cls, value: object) -> object:
        return listed_engines(value) if isinstance(value, str) else value

    @field_validator("engines")
    @classmethod
    def _known_engines(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_engines(value)
        return value

    @field_validator("redis_url")
    @classmethod
    def _known_redis(cls, value: str | None) -> str | None:
        if value is not None:
            from sessions.connection.address import RedisAddress  # and with it the redis client

            RedisAddress.parse(value)
        return value

    @field_validator(*CHOICES)
    @classmethod
    def _one_of(cls, value: str | None, info: ValidationInfo) -> str | None:
        choices = CHOICES[info.field_name or ""]
        if value is not None and value not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _exact_origins(cls, value: str) -> str:
        for origin in filter(None, map(str.strip, value.split(","))):
            if re.fullmatch(r"https?://[^/?#@*\s]+", origin, re.IGNORECASE) is None:
                raise ValueError(f"{origin} is not an origin; one looks like https://chat.example")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _proxy_addresses(cls, value: str) -> str:
        for address in filter(None, map(str.strip, value.split(","))):
            try:
                ipaddress.ip_network(address)
            except ValueError:
                raise ValueError(f"{address} is neither an address nor a network") from None
        return value

    @field_validator("lora_dir")
    @classmethod
    def _existing_folder(cls, value: str | None) -> str | None:
        if value is None:
            return None
        folder = Path(value).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder")
        return str(folder)

    @field_validator("log_format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        if value not in ("auto", "json", "text"):
            raise ValueError("must be auto, json or text")
        return value

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.lower() not in ("debug", "info", "warning", "error"):
            raise ValueError("must be debug, info, warning or error")
        return value.lower()

    @model_validator(mode="after")
    def _check_tokens(self) -> "Settings":
        for name in ("token", "admin_token"):
            value = getattr(self, name)
            if value is None:
                continue
            if not value.strip() or not value.isascii():
                raise ValueError(f"{name}: must be ASCII and not empty")
            if len(value) < MIN_SECRET_CHARACTERS:
                raise ValueError(
                    f"{name}: at least {MIN_SECRET_CHARACTERS} characters; "
                    "leave it out, and Parley makes one up"
                )
        if self.token is not None and self.token == self.admin_token:
            raise ValueError("admin_token: must differ from token")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def models(self) -> tuple[ModelSource, ...]:
        """What is served, the default one first."""
        return tuple(map(parse_model, self.model))

    @property
    def engine_entries(self) -> tuple[EngineEntry, ...]:
        """The engines that answer, each for itself."""
        return parse_engines(self.engines)

    @property
    def effective_log_format(self) -> str:
        if self.log_format != "auto":
            return self.log_format
        return "text" if sys.stderr.isatty() else "json"

    def pace_of(self, model: ModelSource) -> float:
        """Tokens per second of each of its answers; 0: as fast as possible."""
        if self.pace is not None:
            return self.pace
        return DEMO_PACE if model.is_demo else 0.0

    @property
    def options(self) -> frozenset[str]:
        """The names of what was given on the command line."""
        return self._options

    @property
    def from_environment(self) -> frozenset[str]:
        """The names of what the environment gives."""
        return self._from_environment

    @property
    def otlp_headers(self) -> dict[str, str]:
        """OpenTelemetry's variables that hold passwords: workers alone get them."""
        return self._otlp_headers

    @property
    def limits(self) -> Limits:
        """The limits in force: unlimited on loopback where nothing is set."""
        chosen = {"max_connections": self.max_connections} | {
            name: given
            if (given := getattr(self, name)) is not None
            else (0 if self.is_loopback else exposed)
            for name, exposed in EXPOSED_LIMITS.items()
        }
        tokens = 0 if self.is_loopback else EXPOSED_TOKENS_PER_DAY
        if self.max_tokens_per_day is not None:
            tokens = self.max_tokens_per_day
        quotas = Quotas(
            sessions_per_user=self.max_sessions_per_user,
            messages_per_session=self.max_messages_per_session,
            bytes_per_session=self.max_bytes_per_session,
            tokens_per_day=tokens,
        )
        return Limits(
            **chosen,
            messages_per_s=self.max_messages_per_s,
            quotas=quotas,
            session_idle_seconds=self.session_idle_days * 86_400,
            stored_response_seconds=self.stored_response_days * 86_400,
            answer_seconds=self.max_answer_seconds,
        )

    @property
    def intervals(self) -> Intervals:
        """How often and how long, for every process; what an operator has set counts."""
        given = {
            name: getattr(self, f"{name}_seconds")
            for name in ("drain", "ping", "watchdog", "restart")
            if not self.testing or f"{name}_seconds" in self.model_fields_set
        }
        return msgspec.structs.replace(SHORTENED if self.testing else Intervals(), **given)

    @property
    def proxies(self) -> tuple[str, ...]:
        return tuple(p.strip() for p in self.trusted_proxies.split(",") if p.strip())

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(o.strip().casefold() for o in self.allowed_origins.split(",") if o.strip())


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Settings:
    """Flags over environment over defaults. Raises `ConfigError` with one line."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | set(OTHER_NAMES)
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            # Without the prefix, which makes all names alike.
            without = [one.removeprefix(PREFIX) for one in known]
            near = difflib.get_close_matches(name.removeprefix(PREFIX), without, n=1)
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {name}{hint}")
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    try:
        settings = Settings(**given)
        settings._options = frozenset(given)
        in_environment = (n for n in Settings.model_fields if PREFIX + n.upper() in environment)
        settings._from_environment = frozenset(in_environment)
        settings._otlp_headers = {n: environment[n] for n in OTLP_HEADERS if n in environment}
        return settings
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(masked(f"{where}: {message}" if where else message)) from None


def read_or_create_secret(path: Path) -> str:
    """A token that outlives restarts, in a file that only its owner can read.

    One that is too short to be ours, say from a write that was cut off, is made again.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        os.fchmod(file.fileno(), 0o600)  # also where it was there before, with another mode
        secret = file.read().strip()
        if len(secret) < MIN_SECRET_CHARACTERS:
            secret = secrets.token_urlsafe(32)
            file.seek(0)
            file.truncate()
            file.write(secret + "\n")
        return secret
