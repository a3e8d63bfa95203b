"""The commands that Parley sends: listed, documented, enough for an ACL user, and no others."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.feed import LiveFeed
from sessions.connection.rights import COMMANDS, TRIALS, acl_rule
from sessions.directory.credentials import Credentials
from sessions.model.errors import StoreRefused
from sessions.store.store import SessionStore
from tests.helpers.root import ROOT
from tests.sessions.helpers.chat import Chat
from tests.sessions.store.test_invariants import play

pytestmark = pytest.mark.row("P24")


PRODUCT = [*(ROOT / "sessions").rglob("*.py"), *(ROOT / "server").rglob("*.py")]
# They walk all keys, or hold the server or the connection up for as long as they like.
FORBIDDEN = {*"KEYS SCAN HSCAN SSCAN ZSCAN SORT FLUSHALL FLUSHDB MONITOR WAIT XREAD BLPOP".split()}


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def sent_by(path: Path) -> Iterator[str]:
    """The commands of a module: first words of calls, and of tuples that are commands."""
    for node in ast.walk(ast.parse(path.read_text())):
        words: list[ast.expr] = []
        form = r"[A-Z]{3,}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("call", "everywhere", "send_command"):
                words, form = node.args, r"\w+"  # in small letters it is a command, too
            elif node.func.attr == "read_each":  # after its keys
                words, form = node.args[1:], r"\w+"
        elif isinstance(node, ast.Tuple):
            words = node.elts
        if words and isinstance(words[0], ast.Constant) and isinstance(words[0].value, str):
            if re.fullmatch(form, words[0].value):
                yield words[0].value


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_command_that_walks_all_keys_or_blocks_is_named(path: Path) -> None:
    assert FORBIDDEN.isdisjoint(constants(path))


def test_no_script_calls_what_is_not_listed() -> None:
    scripts = "".join(path.read_text() for path in (ROOT / "sessions" / "lua").rglob("*.lua"))
    assert set(re.findall(r"redis\.p?call\('(\w+)'", scripts)) <= COMMANDS


def test_no_module_sends_what_is_not_listed() -> None:
    sent = {name for path in (ROOT / "sessions").rglob("*.py") for name in sent_by(path)}
    assert sent - {"SENTINEL"} <= COMMANDS  # that one goes to sentinels, not to a server


def test_the_documented_acl_line_is_the_one_that_is_tested() -> None:
    text = " ".join((ROOT / "docs" / "operations.md").read_text().split())
    assert acl_rule() in text


@pytest.fixture
async def restricted(own_redis: EmbeddedRedis) -> AsyncIterator[SessionStore]:
    """A store whose user has the documented rights and no others."""
    await command(own_redis, *f"ACL SETUSER parley on >secret {acl_rule()}".split())
    await command(own_redis, "CONFIG", "RESETSTAT")
    store = await SessionStore.open(f"{own_redis.url}?username=parley&password=secret")
    yield store
    await store.close()


async def test_the_documented_rights_are_enough_for_everything_and_nothing_else_is_sent(
    own_redis: EmbeddedRedis, restricted: SessionStore
) -> None:
    chat = await Chat.create(restricted)
    async with LiveFeed(restricted.client, restricted.keys, probe_seconds=0.01) as feed:
        channel = restricted.keys.session_channel(chat.session_id)
        await feed.subscribe(channel, lambda _: None)
        await play(chat, seed=1)
        await restricted.lists.page("alice")
        await restricted.messages.path("alice", chat.session_id)
        await restricted.sessions.events(chat.session_id, after=0)
        await restricted.runs.expired()
        await restricted.runs.owned_by("w1")
        await restricted.publish_user("alice", {})
        await restricted.publish_control("w1", {})
        await restricted.ping()
        await restricted.check_writes()
        await restricted.find_faults()
        await restricted.sessions.delete("alice", chat.session_id)
        await feed.unsubscribe(channel)
    await log_in_and_out(Credentials(restricted.client, restricted.keys))
    sent = await commands_sent(own_redis) - {"acl", "config|resetstat"}
    assert sent <= {name.lower() for name in COMMANDS} | {
        "script|load",
        "config|get",
        "pubsub|numsub",
    }


async def log_in_and_out(credentials: Credentials) -> None:
    token = await credentials.lookup(await credentials.create_token("alice"))
    assert token is not None
    code = await credentials.create_login_code("alice", token)
    made = await credentials.redeem_login_code(code, 60.0)
    assert made is not None
    credential = await credentials.lookup(made[0])
    assert credential is not None
    ticket = await credentials.create_ticket(credential)
    assert await credentials.redeem_ticket(ticket) is not None
    assert await credentials.revoke(made[0])


@pytest.mark.parametrize("words", ["FLUSHALL", "KEYS *", "GET other:x", "PUBLISH other:x y"])
async def test_the_documented_rights_give_no_more(restricted: SessionStore, words: str) -> None:
    with pytest.raises(NoPermissionError):
        await restricted.client.call(*words.split())


@pytest.mark.row("R15")
@pytest.mark.parametrize("name", sorted({str(words[0]) for words in TRIALS} - {"PING"}))
async def test_each_missing_right_is_named_at_the_start(
    any_own_redis: EmbeddedRedis, name: str
) -> None:
    rule = acl_rule().replace(f"+{name.lower()} ", "") + " "
    rule = rule.replace(f"+{name.lower()} ", "")
    await command(any_own_redis, *f"ACL SETUSER poor{name} on >pw {rule}".split())
    url = f"{any_own_redis.url}?username=poor{name}&password=pw"
    with pytest.raises(
        StoreRefused, match=rf"denies our user {name}\b|the '{name.lower()}' command"
    ):
        await SessionStore.open(url)


@pytest.fixture(scope="module")
def any_own_redis(any_redis: object) -> EmbeddedRedis:
    """One server for tests that only add users."""
    if not isinstance(any_redis, EmbeddedRedis):
        pytest.skip("about one server")
    return any_redis


@pytest.mark.row("R15")
async def test_missing_rights_to_keys_and_channels_are_named(own_redis: EmbeddedRedis) -> None:
    for wrong in ("~parley:*", "&parley:*"):
        rule = acl_rule().replace(wrong, wrong.replace("parley", "other"))
        await command(own_redis, *f"ACL SETUSER parley on >pw {rule}".split())
        kind = {"~": "keys", "&": "channels"}[wrong[0]]
        with pytest.raises(StoreRefused, match=f"denies our user the {kind} under our prefix$"):
            await SessionStore.open(f"{own_redis.url}?username=parley&password=pw")


async def commands_sent(redis: EmbeddedRedis) -> set[str]:
    stats = bytes(await command(redis, "INFO", "commandstats")).decode()
    lines = [line for line in stats.splitlines()[1:] if line]
    return {line.split(":")[0].removeprefix("cmdstat_") for line in lines}


async def command(redis: EmbeddedRedis, *words: str) -> bytes:
    """One command by the server's own operator."""
    reader, writer = await asyncio.open_unix_connection(redis.socket_path)
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    writer.write(b"*%d\r\n%s" % (len(words), parts))
    head = await reader.readline()
    assert not head.startswith(b"-"), head
    body = await reader.readexactly(int(head[1:])) if head.startswith(b"$") else head
    writer.close()
    await writer.wait_closed()
    return body
