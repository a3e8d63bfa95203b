"""What the console manages, managed by `parley …`: the same is done, audited, and told in words."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner, Result

from server.cli import app
from tests.end_to_end.browser.test_browser_refusals import redis_away
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import audit, new_user
from tests.end_to_end.site.harness import Client, Server

Parley = Callable[..., Result]
REFUSED, NOT_ASKED, NO_RIGHT, NOT_THERE, AWAY = 1, 2, 3, 4, 5


@pytest.fixture
def parley(two_workers: Server) -> Parley:
    """`parley …` on the server's machine, in this process: another one takes its time to start."""

    def run(*words: str, **environment: str) -> Result:
        given = {"PARLEY_DATA_DIR": str(two_workers.data_dir), **environment}
        return CliRunner().invoke(app, list(words), env=given)

    return run


def done(result: Result) -> str:
    """What it has said. It must have gone well."""
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result, code: int) -> str:
    """Why it was not done: one line, and nothing for a script to take."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("parley: ")


@contextmanager
def named(parley: Parley, *names: str) -> Iterator[list[str]]:
    """Users of these names, and their ids."""
    added = [json.loads(done(parley("users", "add", name, "--json"))) for name in names]
    yield [user["id"] for user in added]
    for user in added:
        done(parley("users", "remove", user["id"]))


async def test_a_token_says_what_it_is_for_and_until_when(parley: Parley) -> None:
    with named(parley, "Manage Ada"):
        told = parley("users", "token", "Manage Ada", "--purpose", "her laptop", "--days", "30")
        assert re.fullmatch(r"[A-Za-z0-9_-]{43}\n", told.stdout)
        shown = done(parley("users", "show", "Manage Ada"))
        (line,) = [line for line in shown.splitlines() if "her laptop" in line]
        assert len(re.findall(r"\d{4}-\d\d-\d\d", line)) == 2


async def test_quotas_of_a_user_are_set_one_by_one_and_shown(parley: Parley) -> None:
    with named(parley, "Manage Bob"):
        line = done(parley("users", "quotas", "Manage Bob", "--sessions", "5", "--answers", "2"))
        assert "0 of 5" in line
        done(parley("users", "quotas", "Manage Bob", "--answers", "none"))
        (row,) = json.loads(done(parley("users", "quotas", "Manage Bob", "--json")))["quotas"]
        assert row["own"] == {"tokens_per_day": None, "sessions": 5, "answers": 0}
        said = refused(parley("users", "quotas", "Manage Bob", "--answers", "many"), NOT_ASKED)
        assert said == "--answers: 'many' is no quota: a number, none or default"
        assert "whose quotas" in refused(parley("users", "quotas", "--sessions", "1"), NOT_ASKED)


async def test_users_that_are_built_in_have_the_quotas_of_the_settings(parley: Parley) -> None:
    for name in ("local", "admin"):
        (row,) = json.loads(done(parley("users", "quotas", name, "--json")))["quotas"]
        assert row["user"]["id"] == name
        assert name in done(parley("users", "quotas", name))
        said = refused(parley("users", "quotas", name, "--sessions", "1"), REFUSED)
        assert said == f"{name} is built in: its quotas are those of the settings"
        for words in (("show",), ("disable",), ("invite",), ("rename", "x"), ("remove",)):
            said = refused(parley("users", words[0], name, *words[1:]), REFUSED)
            assert said.startswith(f"{name} is built in")


async def test_a_group_is_made_joined_limited_left_and_removed(parley: Parley, admin: Http) -> None:
    with named(parley, "Manage Cy") as (uid,):
        made = json.loads(
            done(parley("groups", "add", "Manage crew", "--tokens-per-day", "1000", "--json"))
        )
        assert done(parley("groups", "join", "Manage crew", "Manage Cy")) == (
            "Manage Cy is in Manage crew\n"
        )
        assert uid in done(parley("groups", "members", "Manage crew"))
        assert "0 of 1,000" in done(parley("groups", "list"))
        done(parley("groups", "quotas", "Manage crew", "--answers", "3"))
        (group,) = [
            one
            for one in json.loads(done(parley("groups", "list", "--json")))
            if one["id"] == made["id"]
        ]
        assert group["quotas"] == {"tokens_per_day": 1000, "sessions": None, "answers": 3}
        assert refused(parley("groups", "add", "Manage crew"), REFUSED).startswith("another group")
        done(parley("groups", "leave", "Manage crew", "Manage Cy"))
        assert "no member" in refused(
            parley("groups", "leave", "Manage crew", "Manage Cy"), NOT_THERE
        )
        done(parley("groups", "rename", "Manage crew", "Manage others"))
        done(parley("groups", "remove", "Manage others"))
        assert "no group has the name" in refused(
            parley("groups", "remove", "Manage others"), NOT_THERE
        )
        assert set(await audit(admin, made["id"])) == {
            *("group.create", "group.join", "group.update", "group.leave", "group.delete")
        }


async def test_a_share_link_is_listed_and_taken_back(
    two_workers: Server, parley: Parley, admin: Http
) -> None:
    ada = await new_user(admin)
    async with Http(two_workers, ada["token"]) as http:
        session = (await http.new_session())["id"]
        path = (await http.post(f"/v1/sessions/{session}/share")).json()["path"]
        assert session in done(parley("shares", "list"))
        assert (await http.get(path)).status_code == 200
        assert done(parley("shares", "revoke", session)) == f"{session} is shared no more\n"
        assert (await http.get(path)).status_code == 404
        stored = json.loads(done(parley("users", "storage", ada["id"], "--json")))
        assert [one["sessions"] for one in stored] == [1]
        assert ada["id"] in [
            one["user_id"] for one in json.loads(done(parley("users", "storage", "--json")))
        ]
    assert "session" in refused(parley("shares", "revoke", "ses_x"), NOT_THERE)


async def test_what_the_server_refuses_is_named_as_it_was_typed(parley: Parley) -> None:
    long = "x" * 600
    with named(parley, "Manage Gus"):
        for words, said in (
            (("notice", "set", "x", "--for", "31d"), "--for: at most 30d"),
            (("notice", "set", "x", "--for", "0s"), "--for: at least 1s"),
            (("notice", "set", long), "text: at most 500 characters"),
            (("users", "add", "Manage Hal", "--days", "99999"), "--days: at most 3650d"),
            (
                ("users", "add", "Manage Hal", "--purpose", long),
                "--purpose: at most 100 characters",
            ),
            (("users", "token", "Manage Gus", "--scope", "root"), "--scope: no such scope: root;"),
            (("users", "token", "Manage Gus", "--days", "99999"), "--days: at most 3650d"),
            (("users", "roles", "Manage Gus", "king"), "roles: no such role: king;"),
            (("users", "rename", "Manage Gus", long), "name: at most 100 characters"),
            (("workers", "drain", "x", "--reason", long), "--reason: at most 200 characters"),
            (("sessions", "stop", "ses_x", "--reason", long), "--reason: at most 200 characters"),
            (("sessions", "--find", long), "--find: at most 200 characters"),
            (("audit", "--action", long), "--action: "),
            (("audit", "--target", long), "--target: "),
        ):
            assert refused(parley(*words), REFUSED).startswith(said), words


async def test_sessions_are_found_by_a_part_of_a_name_or_of_a_title(
    two_workers: Server, parley: Parley, admin: Http
) -> None:
    """As the console's search finds them, with those that nobody asks anything now."""
    ada = await new_user(admin, name="Manage Adelaide")
    async with Http(two_workers, ada["token"]) as http:
        session = (await http.new_session(title="Lighthouses"))["id"]
    for wanted in ("adelaid", ada["id"], session, "lightHOUSE"):
        found = parley("sessions", "--once", "--find", wanted)
        assert session in done(found), found.output
    assert found.stderr == "1 session with “lightHOUSE” in their titles\n"
    (row,) = json.loads(done(parley("sessions", "--json", "--find", "adelaid")))
    assert row["user"]["name"] == "Manage Adelaide"
    said = refused(parley("sessions", "--find", "zeppelin"), NOT_THERE)
    assert said == "nobody's name, no id, and no title has “zeppelin”"
    weak = done(parley("users", "add", "Manage Weak", "--admin")).strip()
    said = refused(parley("sessions", "--find", "lightHOUSE", PARLEY_ADMIN_TOKEN=weak), NOT_THERE)
    assert said == "nobody's name, and no id, has “lightHOUSE”"
    done(parley("users", "remove", "Manage Weak"))


async def test_a_notice_reaches_those_who_are_there_and_is_cleared(
    two_workers: Server, parley: Parley
) -> None:
    async with Client(two_workers) as client:
        await client.next("connection.ready")
        said = done(parley("notice", "set", "Back at noon", "--for", "2h", "--warning"))
        assert said.startswith("warning by admin, until 2") and said.endswith(": Back at noon\n")
        shown = (await client.next("notice.updated"))["notice"]
        assert (shown["text"], shown["level"]) == ("Back at noon", "warning")
    assert "Back at noon" in done(parley("notice", "show"))
    done(parley("notice", "clear"))
    assert done(parley("notice", "show")) == "No notice is shown.\n"
    assert refused(parley("notice", "clear"), NOT_THERE) == "no notice is shown"
    said = refused(parley("notice", "set", "x", "--for", "soon"), NOT_ASKED)
    assert said == "--for: 'soon' is no time such as 30m, 4h or 7d"


async def test_the_audit_log_is_filtered_as_in_the_console(parley: Parley) -> None:
    with named(parley, "Manage Dee") as (uid,):
        done(parley("users", "disable", uid))
        words = ("audit", "--target", uid, "--json")
        assert [one["action"] for one in json.loads(done(parley(*words)))] == [
            *("user.update", "user.create")
        ]
        (made,) = json.loads(done(parley(*words, "--action", "user.create", "--since", "1h")))
        assert made["actor"] == "admin"
        assert json.loads(done(parley(*words, "--until", "1h"))) == []
        assert "Nothing fits." in done(parley("audit", "--actor", uid))
    assert "yesterday" in refused(parley("audit", "--since", "yesterday"), NOT_ASKED)


async def test_settings_are_shown_as_they_run_with_secrets_masked(parley: Parley) -> None:
    settings = json.loads(done(parley("settings", "--json")))
    (workers,) = [one for one in settings if one["name"] == "PARLEY_WORKERS"]
    assert (workers["value"], workers["origin"]) == ("2", "environment")
    shown = done(parley("settings", "--changed"))
    assert "PARLEY_WORKERS" in shown and "PARLEY_MAX_NUM_QUEUED_REQS" not in shown


async def test_a_worker_logs_more_and_less_again(parley: Parley) -> None:
    roll = json.loads(done(parley("workers", "list", "--json")))
    worker, level = roll["replicas"][0]["id"], roll["replicas"][0]["log_level"]
    said = done(parley("workers", "log-level", worker, "debug", "--reason", "a look"))
    assert said == f"{worker} logs debug until it ends\n"
    done(parley("workers", "log-level", worker, level))
    assert refused(parley("workers", "log-level", worker, "loud"), REFUSED).startswith("level: ")
    for deed in ("drain", "restart"):
        assert refused(parley("workers", deed, "nobody"), NOT_THERE) == "no such worker"


async def test_who_has_no_right_is_told_which_one_is_missing(parley: Parley) -> None:
    token = done(parley("users", "add", "Manage Eve", "--admin")).strip()
    weak = {"PARLEY_ADMIN_TOKEN": token}
    for words, scope in (
        (("workers", "restart", "nobody"), "admin:operate"),
        (("workers", "log-level", "nobody", "debug"), "admin:operate"),
        (("users", "invite", "Manage Eve"), "admin:transcripts"),
        (("users", "token", "Manage Eve"), "admin:transcripts"),
    ):
        assert refused(parley(*words, **weak), NO_RIGHT).endswith(f"the scope {scope}")
    done(parley("users", "remove", "Manage Eve"))
    assert "not valid" in refused(parley("users", "list", **weak), NO_RIGHT)


@pytest.mark.slow
async def test_what_cannot_be_recorded_is_told_and_not_done(
    two_workers: Server, parley: Parley
) -> None:
    with named(parley, "Manage Fay") as (uid,):
        done(parley("groups", "add", "Manage away"))
        (worker, *_) = json.loads(done(parley("workers", "list", "--json")))["replicas"]
        with redis_away(two_workers):
            for words in (
                ("users", "list"),
                ("users", "disable", uid),
                ("users", "quotas", uid, "--sessions", "1"),
                ("groups", "remove", "Manage away"),
                ("notice", "set", "x"),
                ("shares", "list"),
                ("audit",),
                ("workers", "restart", worker["id"]),
                ("workers", "log-level", worker["id"], "debug"),
            ):
                refused(parley(*words), AWAY)
        shown = json.loads(done(parley("users", "show", uid, "--json")))
        assert (shown["disabled"], shown["quotas"]["sessions"]) == (False, None)
        done(parley("groups", "remove", "Manage away"))
        assert done(parley("notice", "show")) == "No notice is shown.\n"
