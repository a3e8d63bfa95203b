"""A proxy that does to connections what networks do: delay, stall, cut, split, throttle, redirect.

It listens on TCP or on a unix socket and forwards to either, never reorders or changes a byte, and
runs in a thread with an event loop of its own, so that a test may block without stalling the link.
It obeys one-line commands, given to `FaultProxy.command` or over its control port:

    pass                  forward again, what was held first; forget all rules
    delay SECONDS         hold each byte so long, each way
    rate BYTES            so many bytes per second, each way; 0 is unlimited
    split                 write single bytes
    blackhole [replies]   hold everything, or all that comes from the target; no FIN
    cut-after BYTES       reset each connection after so many more bytes from the target
    rst | fin             end the open connections hard, or in order
    refuse                refuse new connections until `pass`
    idle SECONDS          end in order what carries no byte for so long, as middleboxes do
    target ADDRESS        connect to this address from now on
    stat                  change nothing

Each is answered with a line of counters. `COMMAND on WORD` concerns the open connections whose
first 4 KiB from the client hold the word, `COMMAND every WORD` also those to come; `pid:NUMBER` as
the word names the clients of one process (unix sockets only). Addresses are `host:port` or a path.
By hand: `python -m tests.end_to_end.site.fault_proxy LISTEN TARGET CONTROL`.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T")

HEAD_BYTES = 4096  # of a connection, in which a word is looked for
CHUNK_BYTES = 16 * 1024
PENDING_BYTES = 64 * 1024  # held per direction before the sender feels it
COMMAND_SECONDS = 10.0


@dataclass(frozen=True)
class Faults:
    """What is done to one connection."""

    delay: float = 0.0
    rate: float = 0.0
    split: bool = False
    hold_requests: bool = False
    hold_replies: bool = False
    replies_left: int | None = None  # bytes until the cut


Change = Callable[[Faults], Faults]


class Rule(NamedTuple):
    word: str  # '' is every connection
    change: Change


class FaultProxy:
    """Use as a context manager; `address` is where clients connect.

    `receive_buffer` (bytes) makes the proxy's sockets towards the target as small as those of a
    slow reader, and what it holds itself, too; None leaves them to the kernel.
    """

    def __init__(
        self, target: str, listen: str = "127.0.0.1:0", *, receive_buffer: int | None = None
    ) -> None:
        self.address = listen
        self.target = target
        self.receive_buffer = receive_buffer
        self.chunk_bytes = min(CHUNK_BYTES, receive_buffer or CHUNK_BYTES)
        self.pending_bytes = min(PENDING_BYTES, receive_buffer or PENDING_BYTES)
        self.num_bytes = 0
        self.num_accepted = 0
        self.rules: list[Rule] = []
        self.links: set[Link] = set()
        self._listener: asyncio.Server | None = None
        self._cutting_idle: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self.listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def command(self, line: str) -> str:
        """Obey one line, as in the module's text, and return the counters.

        Raises ValueError for a line that is no command.
        """
        return self._call(self.obey(line))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(COMMAND_SECONDS)

    async def obey(self, line: str) -> str:
        """`command`, for callers inside the proxy's loop."""
        words = line.split()
        word, lasting = "", True
        if len(words) > 2 and words[-2] in ("on", "every"):
            lasting, word = words[-2] == "every", words[-1]
            words = words[:-2]
        named = [link for link in self.links if link.is_named(word)]
        match words:
            case ["stat"]:
                pass
            case ["rst"]:
                for link in named:
                    link.reset()
            case ["fin"]:
                for link in named:
                    link.finish()
            case ["refuse"]:
                self._stop_listening()
            case ["idle", seconds]:
                self._cutting_idle = asyncio.create_task(self._cut_idle(float(seconds)))
            case ["target", address]:
                self.target = address
            case _:
                self._change(Rule(word, _change(words)), named, lasting)
                if words == ["pass"]:
                    await self.listen()
        return f"connections={len(self.links)} accepted={self.num_accepted} bytes={self.num_bytes}"

    def _change(self, rule: Rule, named: "list[Link]", lasting: bool) -> None:
        if lasting and not rule.word and rule.change(Faults(split=True)) == Faults():
            self.rules.clear()
            if self._cutting_idle is not None:
                self._cutting_idle.cancel()
        elif lasting:
            self.rules.append(rule)
        for link in named:
            link.change(rule.change)

    async def listen(self) -> None:
        if self._listener is None:
            self._listener = await _start_server(self._accept, self.address)
            self.address = _address_of(self._listener) or self.address

    async def _cut_idle(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds / 20)
            for link in list(self.links):
                if self._loop.time() - link.last_byte_at > seconds:
                    link.finish()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_accepted += 1
        link = Link(self, reader, writer)
        self.links.add(link)
        try:
            await link.run()
        finally:
            self.links.discard(link)

    async def _close(self) -> None:
        self._stop_listening()
        for link in list(self.links):
            link.reset()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()  # again, for `wait_for` may swallow one that comes with its result
            await asyncio.wait(tasks, timeout=0.2)


class Link:
    """One client's connection and ours to the target."""

    def __init__(
        self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.proxy = proxy
        self.faults = Faults()
        self.head = b""
        self.last_byte_at = asyncio.get_running_loop().time()
        self._pid = _peer_pid(writer)
        self._client = (reader, writer)
        self._writers = [writer]
        self._pumps: list[_Pump] = []
        self._changed = asyncio.Event()
        self._task = asyncio.current_task()
        self._apply_rules()

    def is_named(self, word: str) -> bool:
        if word.startswith("pid:"):
            return self._pid == int(word.removeprefix("pid:"))
        return word.encode() in self.head

    def change(self, change: Change) -> None:
        self.faults = change(self.faults)
        self._changed.set()
        for pump in self._pumps:
            pump.wake.set()

    def saw(self, request: bytes) -> None:
        """Note what the client sends, in case a rule names it."""
        if len(self.head) < HEAD_BYTES:
            known = self._rules()
            self.head += request
            if known != self._rules():
                self._apply_rules()

    def _rules(self) -> list[Rule]:
        return [rule for rule in self.proxy.rules if self.is_named(rule.word)]

    def _apply_rules(self) -> None:
        self.change(lambda _: Faults())
        for rule in self._rules():
            self.change(rule.change)

    async def run(self) -> None:
        try:
            while self.faults.hold_requests:  # nobody hears a black hole's SYN
                self._changed.clear()
                await self._changed.wait()
            target = await _connect(self.proxy.target, self.proxy.receive_buffer)
            self._writers.append(target[1])
            requests = _Pump(self, self._client[0], target[1], replies=False)
            replies = _Pump(self, target[0], self._client[1], replies=True)
            self._pumps = [requests, replies]
            await asyncio.gather(requests.read(), requests.write(), replies.read(), replies.write())
            self.finish()
        except OSError:
            self.reset()
        except asyncio.CancelledError:
            pass

    def reset(self) -> None:
        """End both connections with RST."""
        for writer in self._writers:
            with contextlib.suppress(OSError):
                raw = writer.get_extra_info("socket")
                if raw.family != socket.AF_UNIX:
                    linger = struct.pack("ii", 1, 0)
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        self._end()

    def finish(self) -> None:
        """End both connections in order."""
        for writer in self._writers:
            writer.close()
        self._end()

    def _end(self) -> None:
        if self._task is not asyncio.current_task() and self._task is not None:
            self._task.cancel()


class _Pump:
    """One direction: what is read waits in order until the faults let it be written."""

    def __init__(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        replies: bool,
    ) -> None:
        self.wake = asyncio.Event()
        self._link = link
        self._reader = reader
        self._writer = writer
        self._replies = replies
        self._pending: deque[tuple[float, bytes]] = deque()  # b'' is the end
        self._num_pending = 0
        self._room = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        writer.transport.set_write_buffer_limits(high=0)

    async def read(self) -> None:
        data = b"?"
        while data:
            data = await self._reader.read(self._link.proxy.chunk_bytes)
            if not self._replies:
                self._link.saw(data)
            self._pending.append((self._clock(), data))
            self._num_pending += len(data)
            self.wake.set()
            while self._num_pending > self._link.proxy.pending_bytes:
                self._room.clear()
                await self._room.wait()

    async def write(self) -> None:
        while True:
            while not self._pending:
                self.wake.clear()
                await self.wake.wait()
            arrived, data = self._pending.popleft()
            await self._due(arrived)
            if not data:
                break
            await self._write_pieces(arrived, data)
            self._num_pending -= len(data)
            self._room.set()
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def _write_pieces(self, arrived: float, data: bytes) -> None:
        while data:
            await self._due(arrived)
            faults = self._link.faults
            size = 1 if faults.split else int(faults.rate / 20) or 1 if faults.rate else len(data)
            if self._replies and faults.replies_left is not None:
                size = min(size, faults.replies_left)
            piece, data = data[:size], data[size:]
            if faults.rate or faults.split:
                await asyncio.sleep(len(piece) / faults.rate if faults.rate else 0)
            self._writer.write(piece)
            await self._writer.drain()
            self._link.proxy.num_bytes += len(piece)
            self._link.last_byte_at = self._clock()
            self._count_down(len(piece))

    def _count_down(self, num_bytes: int) -> None:
        left = self._link.faults.replies_left
        if self._replies and left is not None:
            self._link.change(lambda faults: replace(faults, replies_left=left - num_bytes))
            if left <= num_bytes:
                raise ConnectionResetError("cut")

    async def _due(self, arrived: float) -> None:
        """Wait while the faults hold what came at that time."""
        while True:
            faults = self._link.faults
            held = faults.hold_replies if self._replies else faults.hold_requests
            left = None if held else arrived + faults.delay - self._clock()
            if left is not None and left <= 0:
                return
            self.wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), left)


def _change(words: list[str]) -> Change:
    match words:
        case ["pass"]:
            return lambda _: Faults()
        case ["delay", seconds]:
            return lambda faults: replace(faults, delay=float(seconds))
        case ["rate", rate]:
            return lambda faults: replace(faults, rate=float(rate))
        case ["split"]:
            return lambda faults: replace(faults, split=True)
        case ["blackhole"]:
            return lambda faults: replace(faults, hold_requests=True, hold_replies=True)
        case ["blackhole", "replies"]:
            return lambda faults: replace(faults, hold_replies=True)
        case ["cut-after", num_bytes]:
            return lambda faults: replace(faults, replies_left=int(num_bytes))
    raise ValueError(f"no command: {' '.join(words)!r}")


def _peer_pid(writer: asyncio.StreamWriter) -> int | None:
    raw = writer.get_extra_info("socket")
    if raw.family != socket.AF_UNIX:
        return None
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[0])


Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def _start_server(accept: Accept, address: str) -> asyncio.Server:
    if "/" in address:
        return await asyncio.start_unix_server(accept, address, limit=CHUNK_BYTES)
    host, port = address.rsplit(":", 1)
    return await asyncio.start_server(accept, host, int(port), limit=CHUNK_BYTES)


def _address_of(listener: asyncio.Server) -> str | None:
    """Where it listens on TCP; None for a unix socket."""
    raw = listener.sockets[0]
    if raw.family == socket.AF_UNIX:
        return None
    host, port = raw.getsockname()[:2]
    return f"{host}:{port}"


async def _connect(
    address: str, receive_buffer: int | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    is_path = "/" in address
    limit = min(CHUNK_BYTES, receive_buffer or CHUNK_BYTES)
    raw = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
    raw.setblocking(False)
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        host, _, port = address.rpartition(":")
        await asyncio.get_running_loop().sock_connect(
            raw, address if is_path else (host, int(port))
        )
    except OSError:
        raw.close()
        raise
    if is_path:
        return await asyncio.open_unix_connection(sock=raw, limit=limit)
    return await asyncio.open_connection(sock=raw, limit=limit)


async def _serve_control(
    proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while line := await reader.readline():
        try:
            answer = await proxy.obey(line.decode())
        except ValueError as error:
            answer = str(error)
        writer.write(answer.encode() + b"\n")
        await writer.drain()
    writer.close()


async def _main(listen: str, target: str, control: str) -> None:
    proxy = FaultProxy(target, listen)
    await proxy.listen()
    server = await _start_server(lambda r, w: _serve_control(proxy, r, w), control)
    print(f"{proxy.address} -> {target}, commands at {control}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:4]))
