"""The program that renders a chat template: a process of its own, because templates are code.

    stdin   frames: first the template, then one a rendering; the end of the stream ends us
    stdout  one frame in answer to each

A frame is its length in four bytes and a map in msgpack. The template comes from the checkpoint, so
from anyone. It runs in jinja's immutable sandbox with the names that transformers gives it: the
`tojson` filter, `raise_exception`, `strftime_now`, `{% generation %}`, `break` and `continue`. The
kernel bounds what it can use: a timer of processor time, which nothing in Python can put off, ends
the process in the middle of a rendering that takes too long; memory is refused beyond a limit; and
no file can be opened, no process started.

It imports nothing of ours, so that it is small and there soon. `engine/client/templates/process.py`
is the other end.
"""

import contextlib
import json
import os
import resource
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 32 * 2**20
MEMORY_BYTES = 256 * 2**20  # for a rendering, beside what the process has at its start
# A conversation is decoded, rendered, joined and encoded; a character takes up to four bytes.
MEMORY_PER_BYTE = 16
MAX_REASON_CHARACTERS = 500
NUM_DESCRIPTORS = 3
# What a first use would load from files, which cannot be opened later: codecs, tracebacks, zones.
_WARM_UP = "{{ 'x' | tojson | pprint }}{{ strftime_now('%c') }}{{ raise_exception('so') }}"


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says, for training; here it is transparent."""

    # Jinja reads it as an attribute of the class.
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> jinja2.Template:
    """The template, as transformers would compile it. jinja works constants out here already."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def render(template: jinja2.Template, variables: Mapping[str, Any], max_characters: int) -> str:
    """The text. Raises what the template raises, and `_TooLong`."""
    pieces, length = [], 0
    for piece in template.generate(variables):
        pieces.append(piece)
        length += len(piece)
        if length > max_characters:
            raise _TooLong
    return "".join(pieces)


class _TooLong(Exception):
    """The text has more characters than allowed."""


class Child:
    """Answers frames, one after the other."""

    def __init__(self, memory_in_use: int) -> None:
        self._memory_bytes = memory_in_use + MEMORY_BYTES
        self._template: jinja2.Template | None = None

    def serve(self) -> None:
        """Until the parent has closed its end, or a rendering has used up the memory."""
        while (frame := _read_frame()) is not None:
            self._limit_memory(self._memory_bytes + MEMORY_PER_BYTE * len(frame))
            try:
                reply = msgspec.msgpack.encode(self._answer(msgspec.msgpack.decode(frame)))
            except UnicodeEncodeError:
                reply = msgspec.msgpack.encode({"refused": "the text has half a character"})
            except MemoryError:
                _write_frame(_OUT_OF_MEMORY)
                return  # the end of the process gives all its memory back
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write_frame(reply)

    def _limit_memory(self, num_bytes: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)  # somebody may have set a lower one
        soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # its signal ends the process
        try:
            if "source" in asked:
                self._template = compile_template(asked["source"])
                return {"text": ""}
            assert self._template is not None
            return {"text": render(self._template, asked["variables"], asked["max_characters"])}
        except MemoryError:
            raise
        except _TooLong:
            return {"exceeded": "its text is too long"}
        except Exception as error:  # it is the template's code: it may raise anything
            return {"refused": _reason(error)}


def _reason(error: Exception) -> str:
    """The error's text. The template makes that, too: it may be nested too deep to print."""
    try:
        reason = str(error)[:MAX_REASON_CHARACTERS]
    except MemoryError:
        raise
    except Exception:
        reason = ""
    return (reason or type(error).__name__).encode(errors="replace").decode()


_OUT_OF_MEMORY = msgspec.msgpack.encode({"exceeded": "it needs too much memory"})


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _read_frame() -> bytes | None:
    head = _read(LENGTH_BYTES)
    return None if head is None else _read(int.from_bytes(head))


def _read(num_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < num_bytes:
        piece = os.read(0, min(num_bytes - len(data), 2**20))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _write_frame(content: bytes) -> None:
    left = memoryview(len(content).to_bytes(LENGTH_BYTES) + content)
    while left:
        left = left[os.write(1, left) :]


def _memory_in_use() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _confine() -> int:
    """Give up what a rendering does not need. The memory that is in use by now, in bytes."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a parent may have ignored it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with contextlib.suppress(jinja2.TemplateError):
        render(compile_template(_WARM_UP), {}, MAX_REASON_CHARACTERS)
    in_use = _memory_in_use()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, NUM_DESCRIPTORS),
    ):
        resource.setrlimit(limit, (value, value))
    return in_use


if __name__ == "__main__":
    Child(_confine()).serve()
