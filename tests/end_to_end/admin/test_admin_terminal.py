"""`parley users` and `parley sessions` as an operator types them, in a pipe and in a terminal."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from tests.end_to_end.clients.operators import SETTINGS, answering
from tests.end_to_end.clients.terminal import environment, terminal
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_word

Parley = Callable[..., Awaitable["subprocess.CompletedProcess[str]"]]


@pytest.fixture
def parley(two_workers: Server) -> Parley:
    """Run `parley …` on the server's machine."""

    async def run(*words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "server", *words],
            cwd=ROOT,
            env=environment(two_workers),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


async def test_users_are_added_listed_invited_and_revoked(
    two_workers: Server, parley: Parley
) -> None:
    added = await parley("users", "add", "Terminal Ada", "--days", "1")
    assert added.returncode == 0, added.stderr
    token = added.stdout.strip()
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token) and token not in added.stderr
    assert "Terminal Ada" in (await parley("users", "list")).stdout
    listed = json.loads((await parley("users", "list", "--json")).stdout)
    assert any(user["name"] == "Terminal Ada" for user in listed)
    assert "/login?code=" in (await parley("users", "invite", "Terminal Ada")).stdout
    async with Client(two_workers, token=token) as client:
        assert (await client.next("connection.ready"))["user"]["name"] == "Terminal Ada"
        assert "1 tokens" in (await parley("users", "revoke", "Terminal Ada")).stdout
        assert await client.closed() == 4401
    assert (await parley("users", "remove", "Terminal Ada")).returncode == 0
    gone = await parley("users", "remove", "Terminal Ada")
    assert gone.returncode == 4 and gone.stderr.startswith("parley: no user has the name")


async def test_a_user_is_shown_kept_out_let_in_and_given_roles_and_tokens(
    two_workers: Server, parley: Parley
) -> None:
    token = (await parley("users", "add", "Terminal Cy")).stdout.strip()
    async with Client(two_workers, token=token) as client:
        await client.next("connection.ready")
        assert (await parley("users", "disable", "Terminal Cy")).returncode == 0
        assert await client.closed() == 4403
    assert "disabled" in (await parley("users", "show", "Terminal Cy")).stdout
    assert "may come in" in (await parley("users", "enable", "Terminal Cy")).stdout
    roles = await parley("users", "roles", "Terminal Cy", "user", "admin")
    assert roles.stdout == "Terminal Cy: user admin\n"
    other = await parley("users", "token", "Terminal Cy", "--scope", "admin", "--days", "2")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}\n", other.stdout)
    assert (await parley("users", "rename", "Terminal Cy", "Terminal Cyd")).returncode == 0
    shown = json.loads((await parley("users", "show", "Terminal Cyd", "--json")).stdout)
    (limited,) = [one for one in shown["tokens"] if one["expires_at"] is not None]
    assert limited["scopes"] == ["admin"]
    revoked = await parley("users", "revoke", "Terminal Cyd", "--token", limited["id"])
    assert revoked.returncode == 0, revoked.stderr
    shown = json.loads((await parley("users", "show", "Terminal Cyd", "--json")).stdout)
    assert len(shown["tokens"]) == 1
    quotas = json.loads((await parley("users", "quotas", "--json")).stdout)
    assert "Terminal Cyd" in [row["user"]["name"] for row in quotas["quotas"]]
    assert (await parley("users", "remove", "Terminal Cyd")).returncode == 0


async def test_workers_are_listed_and_one_that_is_unknown_is_not_drained(parley: Parley) -> None:
    listed = (await parley("workers", "list")).stdout
    assert "engine" in listed and listed.count(" ok ") == 2
    refused = await parley("workers", "drain", "nobody")
    assert refused.returncode == 4 and refused.stderr.startswith("parley: ")


async def test_a_name_that_is_empty_or_taken_is_refused_in_one_line(parley: Parley) -> None:
    for empty in ("", "   "):
        refused = await parley("users", "add", empty)
        assert (refused.returncode, refused.stderr) == (1, "parley: a name is needed\n")
    assert (await parley("users", "add", "Terminal Bob")).returncode == 0
    for taken in ("Terminal Bob", " Terminal  Bob "):
        refused = await parley("users", "add", taken)
        assert refused.returncode == 1 and not refused.stdout
        assert refused.stderr.startswith("parley: another user has the name")
    assert (await parley("users", "remove", "Terminal Bob")).returncode == 0


async def test_sessions_are_listed_stopped_and_evicted_by_scripts(
    two_workers: Server, parley: Parley
) -> None:
    async with Client(two_workers) as client:
        session_id, response_id = await answering(client)
        listed = json.loads((await parley("sessions", "--json")).stdout)
        assert session_id in [row["id"] for row in listed]
        listed_once = (await parley("sessions", "--once")).stdout
        for words in (session_id, "title", "worker", "tokens/s", "in_progress"):
            assert words in listed_once
        stopped = (await parley("sessions", "stop", session_id)).stdout
        assert stopped == f"{response_id} cancelled\n"
        await client.done(response_id)
        evicted = await parley("sessions", "evict", session_id, "--reason", "enough", "--lock")
        assert evicted.returncode == 0, evicted.stderr
        assert await client.closed() == 4410
    assert (await parley("sessions", "unlock", session_id)).returncode == 0
    unknown = await parley("sessions", "stop", "ses_x")
    assert (unknown.returncode, unknown.stderr) == (4, "parley: no such session\n")


async def test_the_live_list_chooses_stops_and_evicts_by_keys(two_workers: Server) -> None:
    async with Client(two_workers) as first, Client(two_workers) as second:
        older, _ = await answering(first)
        newer, _ = await answering(second)
        async with terminal(two_workers, "sessions") as screen:
            await screen.shows("Redis answers.*engine ok.*2 workers")
            await screen.shows(f"▸.*{newer}")
            screen.press("\x1b[B\x1b[A\x1b[B")  # together, as a held key or a slow line sends them
            await screen.shows(f"▸.*{older}")
            screen.press("s")
            await screen.shows(f"stopped {older}")
            await screen.shows(f"▸.*{newer}")
            screen.press("e")
            await screen.shows("why")
            screen.press("\x1b[200~spam\n\x1b[201~\r")
            await screen.shows(f"evicted {newer}")
            screen.press("q")
        assert await second.closed() == 4410
        assert second.socket.close_reason == "spam"
        answered = await first.ask(
            older, oracle_word(0), settings={**SETTINGS, "max_output_tokens": 2}
        )
        await first.done(answered)
