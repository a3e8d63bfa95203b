"""Which MCP servers there are: the operator's file, checked whole at the start.

The file has the shape that other hosts of MCP use, and a few limits of ours. All that is wrong in
it is found at once: `ToolsConfigError` holds a line for each mistake. Words of the file are shown
only where they cannot be secrets and in a form that no terminal obeys.
"""

import difflib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

MAX_FILE_BYTES = 2**20
MAX_SECRET_BYTES = 64 * 1024
MAX_SERVERS = 64
MAX_SERVER_NAME = 24
MAX_WORDS = 256  # arguments, variables or headers of one server
MAX_TIMEOUT_SECONDS = 600.0
MIN_RESULT_BYTES, MAX_RESULT_BYTES = 256, 2**20
MAX_CALLS_PER_ANSWER = 100
CONSENTS = ("always", "once", "never")
SHOWN_CHARACTERS = 40
PACKAGE = "mcp"
INSTALL = "pip install 'parley[tools]'"

# No `__`, which stands between server and tool, and no `_` beside it: so each name that a model
# says is cut in one way.
_SERVER_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]|_(?=[A-Za-z0-9-]))*")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# These belong to the protocol, and to the connection.
_OUR_HEADERS = {
    *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
    *("last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
}
_STDIO_KEYS = ("command", "args", "env", "cwd")
_HTTP_KEYS = ("url", "headers")
_LIMIT_KEYS = ("timeout_seconds", "max_result_bytes", "max_calls_per_answer", "consent")
_KEYS = (*_STDIO_KEYS, *_HTTP_KEYS, *_LIMIT_KEYS, "type", "disabled")
_TYPES = {"stdio": "command", "http": "url", "streamable-http": "url"}


class ToolsConfigError(Exception):
    """A line for each mistake in the file."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server: a program that is started, or an address. Holds secrets."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}  # msgspec makes each its own
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    timeout_seconds: float = 30.0  # for a call
    max_result_bytes: int = 65536
    max_calls_per_answer: int = 8
    consent: str = "always"  # whether a user is asked: for each call, once in a chat, or never

    def __repr__(self) -> str:
        return f"ServerConfig({self.name})"  # the rest may be secret


def read_tools_file(
    path: Path, environment: Mapping[str, str] = os.environ
) -> tuple[ServerConfig, ...]:
    """The servers that are not disabled, by name. Raises `ToolsConfigError`."""
    reading = _Reading(path, environment)
    servers = reading.servers()
    if servers and find_spec(PACKAGE) is None:
        reading.mistakes.append(f"needs the package {PACKAGE}, which is not installed: {INSTALL}")
    if reading.mistakes:
        raise ToolsConfigError([f"{path}: {line}" for line in reading.mistakes])
    return tuple(sorted(servers, key=lambda server: server.name))


def shown(text: object) -> str:
    """A word of a stranger's as it may stand in a line: short, and without control characters."""
    word = text if isinstance(text, str) else json.dumps(text, default=str)
    word = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", word)
    return word if len(word) <= SHOWN_CHARACTERS else word[:SHOWN_CHARACTERS] + "…"


class _Duplicate(ValueError):
    pass


class _Reading:
    """The mistakes of a file, as they are found."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path = path
        self._environment = environment
        self.mistakes: list[str] = []

    def servers(self) -> list[ServerConfig]:
        content = self._content()
        if content is None:
            return []
        for name in content.keys() - {"mcpServers"}:
            self.mistakes.append(f"unknown key {shown(name)}{_near(name, ('mcpServers',))}")
        entries = content.get("mcpServers")
        if not isinstance(entries, dict) or not entries:
            self.mistakes.append('lacks "mcpServers": {"name": {…}}')
            return []
        if len(entries) > MAX_SERVERS:
            self.mistakes.append(f"names {len(entries)} servers; at most {MAX_SERVERS}")
            return []
        self._check_names(list(entries))
        found = (_Entry(name, entry, self).read() for name, entry in entries.items())
        return [server for server in found if server is not None]

    def _content(self) -> dict[str, Any] | None:
        try:
            text = self._bytes(self._path, MAX_FILE_BYTES)
            content = json.loads(text, object_pairs_hook=_without_doubles)
        except _Duplicate as error:
            self.mistakes.append(f"names {shown(str(error))} twice")
        except OSError as error:
            self.mistakes.append(error.strerror or "cannot be read")
        except (ValueError, RecursionError) as error:
            where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            self.mistakes.append(f"is no JSON{where}")
        else:
            if isinstance(content, dict):
                return content
            self.mistakes.append("is no JSON object")
        return None

    def _bytes(self, path: Path, max_bytes: int) -> bytes:
        """Raises OSError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "is no regular file")
            if status.st_mode & stat.S_IWOTH and path == self._path:
                # Who can write it can run programs as us.
                raise OSError(0, "may be written by every user of the machine: chmod o-w")
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise OSError(0, f"has more than {max_bytes} bytes")
        return content

    def _check_names(self, names: list[str]) -> None:
        known: dict[str, str] = {}
        for name in names:
            if len(name) > MAX_SERVER_NAME or _SERVER_NAME.fullmatch(name) is None:
                self.mistakes.append(
                    f"{shown(name)}: a name has at most {MAX_SERVER_NAME} letters, digits, - and "
                    "single _, and begins and ends without _"
                )
            if (other := known.setdefault(name.lower(), name)) != name:
                self.mistakes.append(f"{shown(name)}: differs from {shown(other)} in case alone")

    def expand(self, text: str, say: Callable[[str], None]) -> str:
        """`${NAME}` and `${file:PATH}` replaced; what is missing is said, never what is there."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name.startswith("file:"):
                return self._secret_file(name.removeprefix("file:"), say)
            if _VARIABLE_NAME.fullmatch(name) is None:
                say(f"${{{shown(name)}}} is neither ${{NAME}} nor ${{file:PATH}}")
            elif name.startswith("PARLEY_"):
                say(f"${{{shown(name)}}} is a setting of Parley's own, which no tool is given")
            elif (given := self._environment.get(name)) is None:
                say(f"the variable {shown(name)} is not set")
            else:
                return given
            return ""

        return _REFERENCE.sub(value, text)

    def _secret_file(self, name: str, say: Callable[[str], None]) -> str:
        path = self._path.parent / Path(name).expanduser()
        try:
            return self._bytes(path, MAX_SECRET_BYTES).decode().strip()
        except OSError as error:
            say(f"the file {shown(name)}: {error.strerror or 'cannot be read'}")
        except ValueError:
            say(f"the file {shown(name)} is no UTF-8")
        return ""


class _Entry:
    """One server of the file."""

    def __init__(self, name: str, entry: object, reading: _Reading) -> None:
        self._name = name
        self._entry = entry
        self._reading = reading

    def _say_of(self, where: str, mistake: str) -> None:
        self._say(f"{where}: {mistake}")

    def _say(self, mistake: str) -> None:
        self._reading.mistakes.append(f"{shown(self._name)}: {mistake}")

    def read(self) -> ServerConfig | None:
        """None where it is disabled, or has mistakes."""
        num_mistakes = len(self._reading.mistakes)
        entry = self._entry
        if not isinstance(entry, dict):
            self._say("is no JSON object")
            return None
        for key in entry.keys() - set(_KEYS):
            self._say(f"unknown key {shown(key)}{_near(key, _KEYS)}")
        disabled = entry.get("disabled", False)
        if not isinstance(disabled, bool):
            self._say("disabled: must be true or false")
        if disabled is True:
            return None
        kind = self._kind(entry)
        given = {**self._limits(entry)}
        if kind == "command":
            given |= self._program(entry)
        elif kind == "url":
            given |= self._address(entry)
        if len(self._reading.mistakes) > num_mistakes:
            return None
        return ServerConfig(name=self._name, **given)

    def _kind(self, entry: dict[str, Any]) -> str | None:
        """`command` or `url`, as keys and `type` say alike."""
        if ("command" in entry) == ("url" in entry):
            self._say('needs either "command" or "url"')
            return None
        kind, others = ("command", _HTTP_KEYS) if "command" in entry else ("url", _STDIO_KEYS)
        if (given := entry.get("type")) == "sse":
            self._say("type sse is not spoken; the transport after it is, streamable HTTP")
        elif given is not None and _TYPES.get(given if isinstance(given, str) else "") != kind:
            self._say(f"type {shown(given)} does not fit {kind}")
        for key in entry.keys() & set(others):
            self._say(f"{key} does not fit {kind}")
        return kind

    def _limits(self, entry: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        bounds: tuple[tuple[str, type, float, float], ...] = (
            ("timeout_seconds", float, 1, MAX_TIMEOUT_SECONDS),
            ("max_result_bytes", int, MIN_RESULT_BYTES, MAX_RESULT_BYTES),
            ("max_calls_per_answer", int, 1, MAX_CALLS_PER_ANSWER),
        )
        for key, kind, least, most in bounds:
            if key not in entry:
                continue
            value = entry[key]
            is_number = isinstance(value, int | kind) and not isinstance(value, bool)
            if is_number and least <= value <= most:
                given[key] = kind(value)
            else:
                self._say(f"{key}: must be a number from {least:g} to {most:g}")
        if "consent" in entry:
            if entry["consent"] in CONSENTS:
                given["consent"] = entry["consent"]
            else:
                self._say(f"consent: must be {', '.join(CONSENTS[:-1])} or {CONSENTS[-1]}")
        return given

    def _program(self, entry: dict[str, Any]) -> dict[str, Any]:
        command = self._public("command", entry["command"])
        args = entry.get("args", [])
        if not isinstance(args, list) or len(args) > MAX_WORDS:
            self._say(f"args: must be a list of at most {MAX_WORDS} texts")
            args = []
        words = [self._public(f"args[{index}]", word) for index, word in enumerate(args)]
        env = self._private("env", entry.get("env", {}), _VARIABLE_NAME)
        for name in env:
            if name.startswith("PARLEY_"):
                self._say(f"env: {shown(name)} is a name of Parley's own")
        cwd = entry.get("cwd")
        if cwd is not None:
            folder = Path(self._public("cwd", cwd)).expanduser()
            if not folder.is_dir():
                self._say(f"cwd: {shown(str(folder))} is no folder")
            cwd = str(folder.absolute())
        if command and shutil.which(command, path=env.get("PATH")) is None:
            self._say(f"command: {shown(command)} is not found")
        return {"command": command, "args": tuple(words), "env": env, "cwd": cwd}

    def _address(self, entry: dict[str, Any]) -> dict[str, Any]:
        url = self._public("url", entry["url"])
        if url:
            self._check_url(url)
        headers = self._private("headers", entry.get("headers", {}), _HEADER_NAME)
        for name, value in headers.items():
            if name.lower() in _OUR_HEADERS:
                self._say(f"headers: {shown(name)} belongs to the protocol")
            if not value.isascii():
                self._say(f"headers: {shown(name)} must be ASCII")
        return {"url": url, "headers": headers}

    def _check_url(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if host is None or parts.scheme not in ("http", "https") or not url.isascii():
            self._say(f"url: {shown(url.split('@')[-1])} is no http or https address")
        elif parts.username is not None or parts.password is not None:
            self._say("url: a password belongs in headers")
        elif parts.fragment:
            self._say("url: has a #, which no server would see")

    def _public(self, key: str, value: object) -> str:
        """A text that other users of the machine, or logs, may show: no secret is put in there."""
        if not isinstance(value, str) or (not value and not key.startswith("args")):
            self._say(f"{key}: must be a text")
        elif _CONTROL.search(value):
            self._say(f"{key}: has control characters")
        elif _REFERENCE.search(value):
            self._say(f"{key}: ${{…}} stands in env and headers only, because others can read this")
        else:
            return value
        return ""

    def _private(self, key: str, values: object, names: re.Pattern[str]) -> dict[str, str]:
        """Texts that may hold secrets: their values are never shown."""
        if not isinstance(values, dict) or len(values) > MAX_WORDS:
            self._say(f"{key}: must be an object of at most {MAX_WORDS} texts")
            return {}
        found = {}
        for name, value in values.items():
            where = f"{key}: {shown(name)}"
            if names.fullmatch(name) is None:
                self._say(f"{where} is no name")
            elif not isinstance(value, str):
                self._say(f"{where} must be a text")
            else:
                found[name] = self._reading.expand(value, partial(self._say_of, where))
                if _CONTROL.search(found[name]):
                    self._say(f"{where} has control characters")
        return found


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Duplicate(name)
        found[name] = value
    return found


def _near(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
