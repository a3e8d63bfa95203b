"""`parley` as a process: its exit codes, its one line, and the link that it prints."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from server import __version__
from tests.end_to_end.clients.terminal import TAKE_TERMINAL
from tests.end_to_end.frames.raw import ask, cookie_of, request, submit_login
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT


def parley(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


async def test_login_prints_a_link_that_works(server: Server) -> None:
    printed = parley("login", "--data-dir", str(server.data_dir))
    assert printed.returncode == 0, printed.stderr
    url = printed.stdout.strip()
    assert url.startswith(server.url + "/login?code=")
    path = url.removeprefix(server.url)
    assert (await ask(server, request(server, path=path))).status == 200
    cookie = [("Cookie", cookie_of(await submit_login(server, path)))]
    assert (await ask(server, request(server, path="/v1/sessions", headers=cookie))).status == 200


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_printed(word: str) -> None:
    assert parley(word).stdout == f"parley {__version__}\n"


@pytest.mark.parametrize(
    "words", [(), ("serve",), ("users",), ("sessions",)], ids=lambda words: " ".join(words)
)
def test_help_for_a_terminal_of_80_columns_is_cut_nowhere(words: tuple[str, ...]) -> None:
    lines = parley(*words, "--help", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line or "..." in line.removesuffix("[ARGS]...")]


def test_the_help_of_serve_names_every_setting_whole() -> None:
    text = parley("serve", "--help", COLUMNS="80").stdout
    options = re.findall(r"^  --([a-z-]+)", text, re.M)
    assert "max-active-responses-per-user" in options
    for option in options:
        assert option == "help" or f"PARLEY_{option.upper().replace('-', '_')}]" in text
    paragraph = "Secrets come from the environment only, because every user"
    assert paragraph in " ".join(text.split())


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PARLEY_MAX_MESAGES_PER_S": "5"}, "did you mean PARLEY_MAX_MESSAGES_PER_S?"),
        ({"PARLEY_MODEL": "/nonexistent/model"}, "/nonexistent/model"),
        ({"PARLEY_HOST": "203.0.113.1"}, "cannot listen on 203.0.113.1"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_with_2_and_one_line(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    given = {"PARLEY_DATA_DIR": str(tmp_path / "data"), "PARLEY_PORT": "0", **environment}
    ended = parley("serve", **given)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_context_beyond_the_model_s_ends_with_2_and_says_so(tmp_path: Path) -> None:
    given = {"PARLEY_DATA_DIR": str(tmp_path / "data"), "PARLEY_PORT": "0"}
    ended = parley("serve", PARLEY_MAX_MODEL_LEN="1000000", **given)
    assert ended.returncode == 2
    assert "max_model_len must be at most 8192, the model's context" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = parley("serve", "--port", port, PARLEY_DATA_DIR=str(tmp_path / "data"))
    assert ended.returncode == 2
    assert f"127.0.0.1:{port}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_second_server_on_the_same_data_is_refused_and_the_first_is_still_found(
    server: Server,
) -> None:
    data_dir = str(server.data_dir)
    port = server.url.rpartition(":")[2]
    for chosen, words in ((port, "cannot listen on"), ("0", "in use by another server")):
        refused = parley("serve", "--data-dir", data_dir, "--port", chosen)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert parley("login", "--data-dir", data_dir).returncode == 0


@pytest.mark.parametrize("is_ignored", [False, True], ids=["pressed", "in the background"])
def test_ctrl_c_ends_a_command_that_is_still_being_loaded_without_a_word(is_ignored: bool) -> None:
    """A shell that starts it in the background has it ignore Ctrl+C."""
    program = """
import os, runpy, signal, sys

class Pressed:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv[1:] = ["version"]
runpy.run_module("server", run_name="__main__", alter_sys=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_IGN if is_ignored else signal.SIG_DFL
        ),
    )
    expected = (0, f"parley {__version__}\n") if is_ignored else (-signal.SIGINT, "")
    assert (ended.returncode, ended.stdout, ended.stderr) == (*expected, "")


class ServerInTerminal(Server):
    """Started by hand, in a terminal that stops a process of the background when it writes."""

    def begin_start(self) -> None:
        self.terminal, secondary = pty.openpty()
        modes = termios.tcgetattr(secondary)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(secondary, termios.TCSANOW, modes)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, "-m", self.module, "serve"],
            cwd=self.root,
            env=self._environment,
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            start_new_session=True,
        )
        os.close(secondary)


def test_workers_log_to_a_terminal_that_stops_the_background_and_ctrl_c_ends_all(
    tmp_path: Path,
) -> None:
    server = ServerInTerminal(tmp_path / "data", "demo", PARLEY_LOG_LEVEL="debug")
    try:
        server.start()
        assert server.process is not None
        os.write(server.terminal, b"\x03")
        assert server.process.wait(PATIENCE) == 0
        assert b"connected" in os.read(server.terminal, 1 << 16)  # which a worker says
    finally:
        server.close()
        os.close(server.terminal)
