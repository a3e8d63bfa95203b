"""The fault proxy does what it is told, and never reorders or changes a byte."""

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.site.fault_proxy import FaultProxy

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def echo_server(family: int, address: object) -> Iterator[str]:
    """Answers each connection with the bytes it sent; gives its address."""

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

    with socket.socket(family) as listener:
        listener.bind(address)  # type: ignore[arg-type]  # a path or a pair
        listener.listen()
        threading.Thread(target=accept, daemon=True).start()
        name = listener.getsockname()
        yield name if isinstance(name, str) else f"{name[0]}:{name[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with (
        echo_server(socket.AF_INET, ("127.0.0.1", 0)) as target,
        FaultProxy(target) as proxy,
    ):
        yield proxy


@contextlib.contextmanager
def connection(proxy: FaultProxy) -> Iterator[socket.socket]:
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        yield client


def receive(client: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (more := client.recv(65536)):
        data += more
    return data


def says(client: socket.socket, text: bytes) -> bool:
    """Whether the text comes back."""
    client.sendall(text)
    return receive(client, len(text)) == text


def is_silent(client: socket.socket) -> bool:
    """Whether nothing comes for a moment."""
    client.settimeout(0.1)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_bytes_pass_whole_and_in_order(proxy: FaultProxy) -> None:
    sent = random.Random(1).randbytes(3_000_000)
    with connection(proxy) as client:
        threading.Thread(target=client.sendall, args=[sent], daemon=True).start()
        for command in ("delay 0.01", "rate 20000000", "split", "blackhole", "pass"):
            proxy.command(command)
        assert receive(client, len(sent)) == sent
    assert "accepted=1" in proxy.command("stat")


def test_a_delay_holds_each_way_and_lets_many_bytes_fly_at_once(proxy: FaultProxy) -> None:
    with connection(proxy) as client:
        assert says(client, b"first")
        proxy.command("delay 0.1")
        began = time.monotonic()
        for _ in range(10):
            client.sendall(b"x" * 10)
        assert receive(client, 100) == b"x" * 100
        assert 0.2 <= time.monotonic() - began < 1.0


def test_a_rate_bounds_the_bytes_per_second(proxy: FaultProxy) -> None:
    with connection(proxy) as client:
        proxy.command("rate 10000")
        began = time.monotonic()
        assert says(client, bytes(2_000))
        assert time.monotonic() - began >= 0.2


def test_a_black_hole_holds_and_afterwards_gives_everything(proxy: FaultProxy) -> None:
    with connection(proxy) as client:
        assert says(client, b"first")
        proxy.command("blackhole replies")
        client.sendall(b"held")
        assert is_silent(client)
        proxy.command("pass")
        assert receive(client, 4) == b"held"
        proxy.command("blackhole")
        client.sendall(b"again")
        assert is_silent(client)
        proxy.command("pass")
        assert receive(client, 5) == b"again"


def test_a_named_connection_alone_is_struck(proxy: FaultProxy) -> None:
    with connection(proxy) as named, connection(proxy) as other:
        assert says(named, b"SUBSCRIBE me") and says(other, b"GET me")
        proxy.command("blackhole on SUBSCRIBE")
        named.sendall(b"held")
        assert is_silent(named)
        assert says(other, b"passes")
        with connection(proxy) as later:
            assert says(later, b"SUBSCRIBE anew")
        proxy.command("blackhole every SUBSCRIBE")
        with connection(proxy) as later:
            assert says(later, b"HELLO")
            later.sendall(b"SUBSCRIBE anew")
            assert is_silent(later)


def test_a_later_rule_wins_over_an_earlier_one(proxy: FaultProxy) -> None:
    proxy.command("blackhole replies")
    proxy.command("pass every SUBSCRIBE")
    with connection(proxy) as named, connection(proxy) as other:
        assert says(named, b"SUBSCRIBE me")
        other.sendall(b"GET me")
        assert is_silent(other)


def test_a_reset_is_a_reset_and_an_end_is_an_end(proxy: FaultProxy) -> None:
    with connection(proxy) as client:
        assert says(client, b"first")
        proxy.command("rst")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with connection(proxy) as client:
        assert says(client, b"first")
        proxy.command("fin")
        assert client.recv(1) == b""


def test_a_cut_comes_after_as_many_bytes_as_asked_for(proxy: FaultProxy) -> None:
    proxy.command("cut-after 7")
    for _ in range(2):  # each connection
        with connection(proxy) as client:
            assert says(client, b"first")
            client.sendall(b"second")
            assert receive(client, 2) == b"se"
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_a_refused_connection_is_refused_by_the_kernel(proxy: FaultProxy) -> None:
    proxy.command("refuse")
    with pytest.raises(ConnectionRefusedError), connection(proxy):
        pass
    proxy.command("pass")
    with connection(proxy) as client:
        assert says(client, b"back")


def test_a_new_target_is_for_new_connections(proxy: FaultProxy, tmp_path: Path) -> None:
    path = str(tmp_path / "echo")
    with connection(proxy) as old, echo_server(socket.AF_UNIX, path):
        assert says(old, b"old")
        proxy.command(f"target {path}")
        assert says(old, b"old still")
        with connection(proxy) as new:
            assert says(new, b"new")
    with contextlib.suppress(ConnectionResetError), connection(proxy) as lost:
        assert lost.recv(1) == b""  # nobody listens behind the proxy


def test_a_client_on_a_unix_socket_is_named_by_its_process(tmp_path: Path) -> None:
    listen = str(tmp_path / "proxy")
    with (
        echo_server(socket.AF_UNIX, str(tmp_path / "echo")) as target,
        FaultProxy(target, listen) as proxy,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(5)
        client.connect(listen)
        assert says(client, b"first")
        proxy.command("blackhole every pid:1")
        assert says(client, b"not me")
        proxy.command(f"blackhole every pid:{os.getpid()}")
        client.sendall(b"me")
        assert is_silent(client)


def test_an_idle_connection_is_ended_and_a_busy_one_is_not(proxy: FaultProxy) -> None:
    with connection(proxy) as idle, connection(proxy) as busy:
        assert says(idle, b"first")
        proxy.command("idle 0.3")
        for _ in range(8):
            assert says(busy, b"still here")
            time.sleep(0.1)  # the clock that the proxy looks at
        assert idle.recv(1) == b""


def test_a_line_that_is_no_command_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="no command: 'explode'"):
        proxy.command("explode")
