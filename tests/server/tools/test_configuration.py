"""The operator's file of MCP servers: read whole, or refused with a line for each mistake."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from server.tools import configuration
from server.tools.configuration import ServerConfig, ToolsConfigError, read_tools_file

SECRET = "sesame-of-the-operator"
GOOD: dict[str, Any] = {"command": sys.executable}


def write(folder: Path, content: object) -> Path:
    path = folder / "tools.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(
    folder: Path, servers: object, environment: dict[str, str] | None = None
) -> tuple[ServerConfig, ...]:
    return read_tools_file(write(folder, {"mcpServers": servers}), environment or {})


def mistakes(folder: Path, servers: object, environment: dict[str, str] | None = None) -> list[str]:
    """Each without the name of the file."""
    with pytest.raises(ToolsConfigError) as raised:
        read(folder, servers, environment)
    lines = raised.value.lines
    assert all(line.startswith(f"{folder}/tools.json: ") for line in lines)
    assert all(line.isprintable() and SECRET not in line for line in lines)
    return [line.removeprefix(f"{folder}/tools.json: ") for line in lines]


def test_a_program_and_an_address_are_read_with_their_limits(tmp_path: Path) -> None:
    clock, notes = read(
        tmp_path,
        {
            "notes": {"url": "https://notes.example/mcp", "type": "http", "consent": "never"},
            "clock": {
                **GOOD,
                "args": ["-m", "clock"],
                "env": {"ZONE": "UTC"},
                "cwd": str(tmp_path),
                "timeout_seconds": 5,
                "max_result_bytes": 4096,
                "max_calls_per_answer": 3,
                "consent": "once",
            },
        },
    )
    assert (clock.name, clock.command, clock.args) == ("clock", sys.executable, ("-m", "clock"))
    assert (clock.env, clock.cwd) == ({"ZONE": "UTC"}, str(tmp_path))
    assert (clock.timeout_seconds, clock.max_result_bytes) == (5.0, 4096)
    assert (clock.max_calls_per_answer, clock.consent) == (3, "once")
    assert (notes.url, notes.consent) == ("https://notes.example/mcp", "never")
    assert (notes.timeout_seconds, notes.max_calls_per_answer) == (30.0, 8)


def test_a_server_that_is_disabled_is_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, {"clock": {**GOOD, "disabled": True}}) == ()


def test_secrets_come_from_variables_and_files_and_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    servers = read(
        tmp_path,
        {
            "clock": {**GOOD, "env": {"KEY": "${file:key}"}},
            "notes": {
                "url": "http://notes.example/mcp",
                "headers": {"Authorization": "Bearer ${NOTES_TOKEN}"},
            },
        },
        {"NOTES_TOKEN": SECRET},
    )
    assert servers[0].env == {"KEY": SECRET}
    assert servers[1].headers == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(servers)


@pytest.mark.parametrize(
    ("servers", "line"),
    [
        ({"a b": GOOD}, "a b: a name has"),
        ({"a__b": GOOD}, "a__b: a name has"),
        ({"a_": GOOD}, "a_: a name has"),
        ({"x" * 25: GOOD}, f"{'x' * 25}: a name has"),
        ({"\x1b[2J": GOOD}, "\N{REPLACEMENT CHARACTER}[2J: a name has"),
        ({"a": {}}, 'a: needs either "command" or "url"'),
        ({"a": {**GOOD, "url": "http://b"}}, 'a: needs either "command" or "url"'),
        ({"a": [1]}, "a: is no JSON object"),
        ({"a": {**GOOD, "comand": 1}}, "a: unknown key comand; did you mean command?"),
        ({"a": {**GOOD, "headers": {}}}, "a: headers does not fit command"),
        ({"a": {**GOOD, "type": "http"}}, "a: type http does not fit command"),
        ({"a": {"url": "http://b", "type": "sse"}}, "a: type sse is not spoken"),
        ({"a": {**GOOD, "disabled": 1}}, "a: disabled: must be true or false"),
        ({"a": {"command": ""}}, "a: command: must be a text"),
        ({"a": {"command": "no-such-command"}}, "a: command: no-such-command is not found"),
        ({"a": {**GOOD, "args": "x"}}, "a: args: must be a list"),
        ({"a": {**GOOD, "args": [1]}}, "a: args[0]: must be a text"),
        ({"a": {**GOOD, "args": ["\x00"]}}, "a: args[0]: has control characters"),
        ({"a": {**GOOD, "args": ["--key=${KEY}"]}}, "a: args[0]: ${…} stands in env and headers"),
        ({"a": {**GOOD, "env": {"A": 1}}}, "a: env: A must be a text"),
        ({"a": {**GOOD, "env": {"A=": "1"}}}, "a: env: A= is no name"),
        ({"a": {**GOOD, "env": {"A": "${B}"}}}, "a: env: A: the variable B is not set"),
        ({"a": {**GOOD, "env": {"A": "${B:-c}"}}}, "a: env: A: ${B:-c} is neither"),
        ({"a": {**GOOD, "env": {"A": "${PARLEY_TOKEN}"}}}, "a: env: A: ${PARLEY_TOKEN} is a sett"),
        ({"a": {**GOOD, "env": {"A": "${file:none}"}}}, "a: env: A: the file none: No such file"),
        ({"a": {**GOOD, "env": {"PARLEY_X": "1"}}}, "a: env: PARLEY_X is a name of Parley's own"),
        ({"a": {**GOOD, "cwd": "/no/such"}}, "a: cwd: /no/such is no folder"),
        ({"a": {"url": "ftp://b"}}, "a: url: ftp://b is no http or https address"),
        ({"a": {"url": "http://"}}, "a: url: http:// is no http or https address"),
        ({"a": {"url": "http://u:p@b"}}, "a: url: a password belongs in headers"),
        ({"a": {"url": "http://b#c"}}, "a: url: has a #"),
        ({"a": {"url": "http://b", "headers": {"Host": "c"}}}, "a: headers: Host belongs to"),
        ({"a": {"url": "http://b", "headers": {"X": "c\nd"}}}, "a: headers: X has control"),
        ({"a": {**GOOD, "timeout_seconds": 0}}, "a: timeout_seconds: must be a number from 1 to"),
        ({"a": {**GOOD, "timeout_seconds": True}}, "a: timeout_seconds: must be a number"),
        ({"a": {**GOOD, "max_result_bytes": 1.5}}, "a: max_result_bytes: must be a number"),
        ({"a": {**GOOD, "consent": "maybe"}}, "a: consent: must be always, once or never"),
    ],
)
def test_each_mistake_is_one_line_that_names_it(tmp_path: Path, servers: object, line: str) -> None:
    (said,) = mistakes(tmp_path, servers, {"PARLEY_TOKEN": SECRET})
    assert said.startswith(line)


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    said = mistakes(
        tmp_path,
        {"a": {**GOOD, "timeout_seconds": 0, "consent": 1}, "A": {"url": "x"}, "b": {"env": 1}},
    )
    assert len(said) == 5


def test_a_file_that_holds_no_servers_is_refused_in_a_line(tmp_path: Path) -> None:
    for content, line in (
        ("{", "is no JSON, line 1"),
        ("[]", "is no JSON object"),
        ("[" * 100_000, "is no JSON"),
        ({}, 'lacks "mcpServers"'),
        ('{"mcpServers": {"a": {"url": "http://b"}, "a": {}}}', "names a twice"),
    ):
        with pytest.raises(ToolsConfigError) as raised:
            read_tools_file(write(tmp_path, content))
        assert raised.value.lines[-1].removeprefix(f"{tmp_path}/tools.json: ").startswith(line)
    with pytest.raises(ToolsConfigError, match="No such file"):
        read_tools_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolsConfigError, match="is no regular file"):
        read_tools_file(tmp_path / "pipe")


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"mcpServers": {"a": GOOD}})
    path.chmod(0o646)
    with pytest.raises(ToolsConfigError, match="may be written by every user"):
        read_tools_file(path)


def test_without_the_package_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda name: None)
    (said,) = mistakes(tmp_path, {"a": GOOD})
    assert said == "needs the package mcp, which is not installed: pip install 'parley[tools]'"
