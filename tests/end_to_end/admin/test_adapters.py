"""Adapters on a server of two workers: who loads them, who chooses them, and exact answers."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, LoRARequest, SamplingParams
from tests.end_to_end.clients.http_client import Http, admin_token, code_of
from tests.end_to_end.clients.operators import audit
from tests.end_to_end.clients.terminal import environment
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import TEXT, begin, owner_and_other
from tests.engine.helpers.lora.adapters import build_adapter
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_answer, oracle_word

NUM_TOKENS = 60
SETTINGS = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
LONG = 250  # tokens of `begin`'s answers
ADAPTERS = {"adapted-pirate": 1, "adapted-poet": 2}  # and their seeds
PATH = "/v1/admin/adapters"


@pytest.fixture(scope="module")
def adapters(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an operator: two adapters, and some that are none."""
    folder = tmp_path_factory.mktemp("adapters")
    for name, seed in ADAPTERS.items():
        build_adapter(folder / name, oracle_model, seed=seed)
    build_adapter(folder / "wide", oracle_model, rank=32)
    build_adapter(folder / "dora", oracle_model, use_dora=True)
    for name in ("truncated", "elsewhere", "pickled"):
        shutil.copytree(folder / "adapted-poet", folder / name)
    weights = folder / "truncated" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    (folder / "elsewhere" / "adapter_config.json").unlink()
    (folder / "elsewhere" / "adapter_config.json").symlink_to(
        folder / "adapted-poet/adapter_config.json"
    )
    pickled = folder / "pickled" / "adapter_model.safetensors"
    pickled.rename(pickled.with_name("adapter_model.bin"))
    (folder / "linked").symlink_to(folder / "adapted-poet")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def expected(oracle_model: Path, adapters: Path) -> dict[str, str]:
    """What the engine itself says with each adapter, after the first word."""
    params = SamplingParams(temperature=0, max_tokens=LONG)
    requests = [LoRARequest(name, n, str(adapters / name)) for n, name in enumerate(ADAPTERS, 1)]
    options: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "num_gpu_blocks_override": 100}
    with LLM(str(oracle_model), threads=1, **options) as llm:
        outputs = llm.generate([oracle_word(0)] * 2, params, lora_request=requests, use_tqdm=False)
    return {name: each.outputs[0].text for name, each in zip(ADAPTERS, outputs, strict=True)}


@pytest.fixture(scope="module")
def site(
    oracle_model: Path, adapters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    settings = {"PARLEY_WORKERS": "2", "PARLEY_PACE": "100", "PARLEY_LORA_DIR": str(adapters)}
    server = Server(
        tmp_path_factory.mktemp("site") / "data", oracle_model, None, **TESTING, **settings
    )
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def admin(site: Server) -> AsyncIterator[Http]:
    """With nothing loaded, before and after."""
    async with Http(site, admin_token(site)) as admin:
        yield admin
        for name in await loaded(admin):
            assert (await admin.ask("DELETE", f"{PATH}/{name}")).status_code == 200


async def load(admin: Http, *names: str) -> None:
    for name in names:
        answer = await admin.post(PATH, {"name": name})
        assert answer.status_code == 201, answer.text


async def loaded(admin: Http) -> list[str]:
    listed = (await admin.get(PATH)).json()["adapters"]
    return [adapter["name"] for adapter in listed if adapter["loaded"]]


async def ask(client: Client, session_id: str, **settings: object) -> str:
    return await client.ask(session_id, oracle_word(0), settings={**SETTINGS, **settings})


async def session_with(client: Client, model: str | None) -> str:
    """A session with that model; None is the server's own."""
    settings = {} if model is None else {"settings": {"model": model}}
    created = await client.reply("session.create", idempotency_key=os.urandom(8).hex(), **settings)
    return str(created["session"]["id"])


def words(text: str, count: int) -> str:
    """The text of so many tokens."""
    return text[: count * len(oracle_word(0))]


async def test_sessions_with_two_adapters_and_without_one_are_answered_at_once(
    site: Server, admin: Http, expected: dict[str, str]
) -> None:
    await load(admin, "adapted-pirate", "adapted-poet")
    async with Client(site) as client:
        asked = {}
        for name in ("adapted-pirate", "adapted-poet", None):
            asked[name] = await ask(client, await session_with(client, name))
        for name, response_id in asked.items():
            answer = await client.done(response_id)
            wanted = oracle_answer(0, NUM_TOKENS) if name is None else expected[name]
            assert answer.final == words(wanted, NUM_TOKENS)
            assert answer.done is not None
            assert answer.done["response"]["model"] == name or name is None
    assert len({oracle_answer(0, LONG), *expected.values()}) == 3


async def test_one_answer_may_have_another_model_than_its_session(
    site: Server, admin: Http, expected: dict[str, str]
) -> None:
    await load(admin, "adapted-pirate")
    async with Client(site) as client:
        session_id = await client.new_session()
        answer = await client.done(await ask(client, session_id, model="adapted-pirate"))
        assert answer.final == words(expected["adapted-pirate"], NUM_TOKENS)
    async with Http(site) as user:
        page = (await user.get(f"/v1/sessions/{session_id}/messages")).json()
    assert [message.get("model") for message in page["messages"]] == [None, "adapted-pirate"]


async def test_models_are_the_model_and_what_is_loaded(site: Server, admin: Http) -> None:
    async with Http(site) as user:
        before = (await user.get("/v1/models")).json()["data"]
        await load(admin, "adapted-poet")
        after = (await user.get("/v1/models")).json()["data"]
    base = before[0]["id"]
    assert [model["id"] for model in before] == [base] and "parent" not in before[0]
    assert after == [*before, {**before[0], "id": "adapted-poet", "parent": base}]


@pytest.mark.slow
async def test_what_is_loaded_survives_the_core_and_every_worker_knows_it(
    site: Server, admin: Http, expected: dict[str, str]
) -> None:
    await load(admin, "adapted-pirate")
    async with owner_and_other(site) as (owner, other, _):
        session, response = await begin(owner, other, model="adapted-pirate")
        site.history.fault("kill -9 of the core")
        site.kill_child("engine.core")
        await other.next("response.queued")
        answer = await other.done(response)
        assert answer.final == words(expected["adapted-pirate"], LONG)
        asked = await ask(other, session, model="adapted-pirate", max_output_tokens=5)
        assert (await other.done(asked)).done is not None


async def test_an_answer_goes_on_with_its_adapter_when_its_worker_is_killed(
    site: Server, admin: Http, expected: dict[str, str]
) -> None:
    await load(admin, "adapted-poet")
    async with owner_and_other(site) as (owner, other, pid):
        _, response = await begin(owner, other, model="adapted-poet")
        site.history.fault("kill -9 of the owner")
        os.kill(pid, signal.SIGKILL)
        await other.next("response.queued")
        await other.next(TEXT)
        assert (await other.done(response)).final == words(expected["adapted-poet"], LONG)


async def test_a_running_answer_keeps_an_adapter_that_is_unloaded_and_the_next_is_refused(
    site: Server, admin: Http, expected: dict[str, str]
) -> None:
    await load(admin, "adapted-pirate")
    async with Client(site) as client:
        session_id = await session_with(client, "adapted-pirate")
        response_id = await ask(client, session_id)
        await client.deltas(response_id, 2)
        assert (await admin.ask("DELETE", f"{PATH}/adapted-pirate")).json() == {
            "name": "adapted-pirate",
            "loaded": False,
        }
        answer = await client.done(response_id)
        assert answer.final == words(expected["adapted-pirate"], NUM_TOKENS)
        refused = await client.reply(
            "response.create",
            session_id=session_id,
            idempotency_key="next",
            input=oracle_word(0),
        )
        assert (refused["error"]["code"], refused["error"]["param"]) == (
            "model_not_found",
            "settings.model",
        )


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("wide", "invalid_field", "rank"),
        ("dora", "invalid_field", "use_dora"),
        ("truncated", "invalid_field", "truncated/adapter_model.safetensors: is no whole"),
        ("elsewhere", "invalid_field", "elsewhere/adapter_config.json: is a link"),
        ("pickled", "invalid_field", "adapter_model.safetensors"),
        ("linked", "invalid_field", "is a link"),
        ("empty", "invalid_field", "empty/adapter_config.json: No such file"),
        ("..", "invalid_field", "letters"),
        ("adapted-poet/../adapted-poet", "invalid_field", "letters"),
        ("/etc", "invalid_field", "letters"),
        (".hidden", "invalid_field", "letters"),
        ("", "invalid_field", "length"),
        ("nowhere", "not_found", "PARLEY_LORA_DIR"),
        ("oracle", "invalid_field", "the model itself"),
    ],
)
async def test_a_bad_adapter_is_refused_by_name_and_nobody_else_notices(
    site: Server, admin: Http, name: str, code: str, problem: str
) -> None:
    if name == "oracle":
        async with Http(site) as user:
            name = (await user.get("/v1/models")).json()["data"][0]["id"]
    async with Client(site) as bystander:
        response_id = await ask(bystander, await bystander.new_session())
        await bystander.deltas(response_id, 1)
        refused = await admin.post(PATH, {"name": name})
        assert code_of(refused)[1] == code
        assert problem in refused.json()["error"]["message"]
        assert await loaded(admin) == []
        answer = await bystander.done(response_id)
        assert answer.final == oracle_answer(0, NUM_TOKENS)


async def test_an_adapter_whose_files_change_is_offered_no_more_until_it_is_loaded_again(
    site: Server, admin: Http, adapters: Path, oracle_model: Path
) -> None:
    build_adapter(adapters / "changing", oracle_model, seed=3)
    await load(admin, "changing")
    build_adapter(adapters / "changing", oracle_model, seed=4)
    listed = {each["name"]: each for each in (await admin.get(PATH)).json()["adapters"]}
    assert "not those that were loaded" in listed["changing"]["problem"]
    before = listed["changing"]["content_hash"]
    await load(admin, "changing")
    listed = {each["name"]: each for each in (await admin.get(PATH)).json()["adapters"]}
    assert "problem" not in listed["changing"] and listed["changing"]["content_hash"] != before


async def test_only_admins_see_and_load_adapters_and_the_audit_log_names_them(
    site: Server, admin: Http
) -> None:
    async with Http(site) as user:
        assert code_of(await user.get(PATH)) == (403, "forbidden")
        assert code_of(await user.post(PATH, {"name": "adapted-poet"})) == (403, "forbidden")
        assert code_of(await user.ask("DELETE", f"{PATH}/adapted-poet")) == (403, "forbidden")
    assert code_of(await admin.ask("DELETE", f"{PATH}/adapted-poet")) == (404, "not_found")
    await load(admin, "adapted-poet")
    actions = await audit(admin, "adapted-poet")
    assert actions[:2] == ["adapter.load", "adapter.unload"]


async def test_adapters_are_loaded_listed_and_unloaded_in_the_terminal(
    site: Server, admin: Http
) -> None:
    async def parley(*words: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "server", *words),
            cwd=ROOT,
            env=environment(site),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        return process.returncode or 0, output.decode(), errors.decode()

    assert (await parley("adapters", "load", "adapted-poet"))[0] == 0
    assert await loaded(admin) == ["adapted-poet"]
    listed = (await parley("adapters", "list"))[1].splitlines()
    shown = [line.split()[:2] for line in listed if line.startswith("adapted-")]
    assert shown == [["adapted-pirate", "not"], ["adapted-poet", "loaded"]]
    assert (await parley("adapters", "unload", "adapted-poet"))[0] == 0
    status, _, errors = await parley("adapters", "unload", "adapted-poet")
    assert status == 4 and errors == "parley: no such adapter is loaded\n"
