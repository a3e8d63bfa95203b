"""`parley chat` as a user types in it, and as programs run it."""

import asyncio
import json
import re
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.end_to_end.clients.terminal import environment, terminal
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_answer, oracle_word

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"


def ask(server: Server, *words: str, question: str = "") -> "subprocess.CompletedProcess[str]":
    """`echo question | parley chat …`"""
    return subprocess.run(
        [sys.executable, "-m", "server", "chat", *words],
        cwd=ROOT,
        env=environment(server),
        input=question,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


async def test_an_answer_is_stopped_asked_again_and_the_chat_gone_on_with(server: Server) -> None:
    async with terminal(server, "chat") as screen:
        await screen.shows("›")
        screen.press(oracle_word(0) + ENTER)
        await screen.shows("00001")
        screen.press(CTRL_C)
        await screen.shows("stopped by you · ")
        first = screen.printed(oracle_word(1))
        assert oracle_answer(0, 3000).startswith(first.rstrip())
        screen.press("/again" + ENTER)
        await screen.shows("‹2/2›")
        await screen.shows("00001")
        screen.press(CTRL_C)
        await screen.shows("stopped by you · ")
        screen.press(CTRL_D)
        await screen.shows("--session (ses_\\S+)")
    found = re.search(r"--session (ses_[\w-]+)", screen.everything)
    assert found is not None
    async with terminal(server, "chat", "--session", found[1]) as screen:
        await screen.shows(f"› {oracle_word(0)}")
        await screen.shows("‹2/2›")
        await screen.shows("stopped by you · ")
        screen.press("/branch back" + ENTER)
        await screen.shows("‹1/2›")
        await screen.shows("stopped by you · ")
        assert screen.printed(oracle_word(1)) == first
        screen.press(CTRL_D)


async def test_ctrl_c_at_the_prompt_drops_the_line_and_twice_leaves(server: Server) -> None:
    async with terminal(server, "chat") as screen:
        await screen.shows("›")
        screen.press("half a sentence")
        await screen.shows("half a sentence")
        screen.press(CTRL_C + CTRL_C)
        await screen.shows("Ctrl\\+C again leaves")
        screen.press(CTRL_C)


async def session_of(server: Server, **settings: object) -> str:
    """A session whose answers end by themselves."""
    async with Client(server) as client:
        return await client.new_session(settings={"temperature": 0, **settings})


async def test_once_prints_the_answer_alone_though_the_network_is_cut(
    server: Server, tmp_path: Path
) -> None:
    session_id = await session_of(server, stop=[oracle_word(100).strip()])
    (tmp_path / "token").write_text(server.token)
    with FaultProxy(server.url.removeprefix("http://")) as proxy:
        (tmp_path / "server.json").write_text(json.dumps({"url": f"http://{proxy.address}"}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "server", "chat", "--once", "--data-dir", str(tmp_path)),
            *("--session", session_id, oracle_word(0)),
            cwd=ROOT,
            env=environment(server),
            stdout=PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            printed = await process.stdout.readexactly(60)
            await asyncio.to_thread(proxy.command, "rst")
            printed += await process.stdout.read()
            assert await process.wait() == 0
    assert printed.decode() == oracle_answer(0, 99) + "\n"


async def test_a_question_from_a_pipe_is_answered_as_text_and_as_json(server: Server) -> None:
    session_id = await session_of(server, stop=[oracle_word(9).strip()])
    words = ("--once", "--session", session_id)
    told = await asyncio.to_thread(ask, server, *words, question=f"{oracle_word(0)}\n")
    assert (told.returncode, told.stdout) == (0, oracle_answer(0, 8) + "\n"), told.stderr
    told = await asyncio.to_thread(ask, server, *words, "--json", question=oracle_word(2))
    assert json.loads(told.stdout)["text"] == oracle_answer(2, 6)
    assert json.loads(told.stdout)["session_id"] == session_id


async def test_who_has_read_enough_ends_the_answer_whatever_else_is_closed(server: Server) -> None:
    session_id = await session_of(server, stop=[oracle_word(2000).strip()])
    chat = f"{sys.executable} -m server chat --session {session_id}"

    async def told(command: str) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command), cwd=ROOT, env=environment(server), stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(PATIENCE):
            said, problems = await process.communicate()
        assert b"Traceback" not in problems, problems
        return said.decode(), problems.decode()

    said, problems = await told(
        f"{chat} --once {oracle_word(0)} | head -c 5; echo ${{PIPESTATUS[0]}}"
    )
    assert said == f"{oracle_answer(0, 9)[:5]}130\n"
    assert problems == "parley: the answer was stopped by you\n"
    said, problems = await told(f"{chat} --once {oracle_word(0)} >/dev/full; echo $?")
    assert said == "130\n" and "No space left on device" in problems
    said, problems = await told(f"{chat} <&- >&-; echo $?")
    assert said == "2\n" and problems.startswith("parley: there is no question")


async def test_an_answer_that_is_not_whole_is_told_by_the_exit_code(server: Server) -> None:
    session_id = await session_of(server, max_output_tokens=5)
    words = ("--once", "--session", session_id)
    told = await asyncio.to_thread(ask, server, *words, oracle_word(0))
    assert (told.returncode, told.stdout) == (1, oracle_answer(0, 5) + "\n")
    assert told.stderr == "parley: the answer was cut short: it reached the length limit\n"
    told = await asyncio.to_thread(ask, server, "--once", "--session", "ses_x", "?")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == "parley: There is no such chat.\n"
    told = await asyncio.to_thread(ask, server, "--once")
    assert told.returncode == 2 and "there is no question" in told.stderr
