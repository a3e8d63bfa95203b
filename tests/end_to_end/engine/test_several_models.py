"""A server of several models: each answers in its own words, comes when asked for, and goes."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.site.deaths import everything_is_killed
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.wiring import at_both, pid_of, replica_of
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_oracle_model, oracle_answer, oracle_word

pytestmark = pytest.mark.slow

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 20}
LONG = {**GREEDY, "max_output_tokens": 150}  # three seconds at this pace
HUGE_BYTES = 4 << 40


@pytest.fixture(scope="module")
def several(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("several")
    other = build_oracle_model(folder / "other", num_layers=2)
    build_broken_model(other, folder / "broken")
    build_huge_model(other, folder / "huge")
    models = [f"oracle={oracle_model}"]
    models += [f"{name}={folder / name}" for name in ("other", "broken", "huge")]
    environment = TESTING | {"PARLEY_WORKERS": "2", "PARLEY_PACE": "50"}
    server = Server(folder / "data", ",".join(models), None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


def copy_but_weights(model: Path, folder: Path) -> None:
    folder.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())


def build_broken_model(model: Path, folder: Path) -> None:
    """One whose weights are cut, which only a core finds out."""
    copy_but_weights(model, folder)
    (folder / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-1000])


def build_huge_model(model: Path, folder: Path) -> None:
    """One whose header says that it has more weights than any machine; its file is a hole."""
    copy_but_weights(model, folder)
    tensor = {"dtype": "F32", "shape": [HUGE_BYTES // 4], "data_offsets": [0, HUGE_BYTES]}
    header = json.dumps({"model.layers.1.mlp.up_proj.weight": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + HUGE_BYTES)


async def models_of(server: Server) -> list[dict[str, Any]]:
    models = await asyncio.to_thread(server.get_json, "/v1/models")
    return list(models["data"])


async def states(server: Server) -> dict[str, str]:
    return {model["id"]: model["state"] for model in await models_of(server)}


async def comes_to(server: Server, name: str, state: str) -> None:
    """As the worker that answers sees it."""
    async with asyncio.timeout(PATIENCE):
        while (await states(server))[name] != state:
            pass  # each look is a request


async def ask(client: Client, model: str | None, number: int, settings: dict[str, Any]) -> str:
    chosen = {} if model is None else {"model": model}
    return await client.ask(
        await client.new_session(), oracle_word(number), settings={**settings, **chosen}
    )


def model_of(client: Client, response: str) -> str:
    frames = [frame for frame in client.frames if frame["type"] == "response.created"]
    (created,) = (it["response"] for it in frames if it["response"]["id"] == response)
    return str(created["model"])


def waited_for(client: Client, response: str) -> list[dict[str, Any]]:
    frames = [frame for frame in client.frames if frame["type"] == "response.queued"]
    return [frame for frame in frames if frame["response_id"] == response]


def other_core(server: Server) -> psutil.Process:
    """The default model's was started first, and is not killed here."""
    return max(server.children("engine.core"), key=psutil.Process.create_time)


async def refusal(client: Client, model: str) -> dict[str, Any]:
    session = await client.new_session()
    error = await client.reply(
        "response.create",
        session_id=session,
        idempotency_key=f"{model}-{session}",
        input=oracle_word(1),
        settings={"model": model},
    )
    assert error["type"] == "error", error
    return dict(error["error"])


async def unload(server: Server, name: str) -> None:
    """Whether or not an earlier test has loaded it."""
    async with Http(server, admin_token(server)) as admin:
        reply = await admin.post("/v1/admin/models/unload", {"name": name})
        assert reply.status_code == 202, reply.text
    await comes_to(server, name, "not_loaded")


async def test_a_model_is_loaded_when_it_is_asked_for_and_others_stream_on(
    several: Server,
) -> None:
    await unload(several, "other")
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        first = await ask(client, None, 7, LONG)
        await client.deltas(first, 3)
        second = await ask(client, "other", 9, GREEDY)
        assert (await client.done(second)).final == oracle_answer(9, 20)
        assert {frame["reason"] for frame in waited_for(client, second)} == {"model_loading"}
        assert model_of(client, second) == "other"
        assert (await client.done(first)).final == oracle_answer(7, 150)
        third = await ask(client, "other", 11, GREEDY)
        assert (await client.done(third)).final == oracle_answer(11, 20)
        assert waited_for(client, third) == []


async def test_models_say_what_they_are(several: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        while "size_bytes" not in (listed := await models_of(several))[-1]:
            pass  # they are looked at one after another; each look of ours is a request
    assert [model["id"] for model in listed] == ["oracle", "other", "broken", "huge"]
    huge = listed[-1]
    assert huge["size_bytes"] > HUGE_BYTES and huge["format"] == "safetensors float32"
    assert listed[1]["context_length"] == 32_768


async def test_a_session_keeps_its_model_and_other_models_know_nothing_of_it(
    several: Server,
) -> None:
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        session = await client.new_session()
        await client.send("session.update", session_id=session, settings={"model": "other"})
        for number in (3, 5):
            response = await client.ask(session, oracle_word(number), settings=GREEDY)
            answer = await client.done(response)
            assert answer.final == oracle_answer(number, 20)
            assert model_of(client, response) == "other"
        error = await refusal(client, "nobody")
        assert error["code"] == "model_not_found"


async def test_a_model_that_cannot_be_loaded_or_does_not_fit_says_so_and_the_others_serve(
    several: Server,
) -> None:
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        first = await ask(client, None, 7, LONG)
        await client.deltas(first, 3)
        huge = await refusal(client, "huge")
        assert huge["code"] == "model_unavailable"
        assert "it needs 4398." in huge["message"] and "GB are free" in huge["message"]
        broken = await refusal(client, "broken")
        assert broken["code"] == "model_unavailable" and "is cut" in broken["message"]
        assert "/" not in broken["message"]  # where it lies is nobody's business
        assert (await client.done(first)).final == oracle_answer(7, 150)
    assert {"broken": "failed", "huge": "failed"}.items() <= (await states(several)).items()


async def test_the_death_of_one_core_is_felt_by_its_own_answers_alone(several: Server) -> None:
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        first, second = await ask(client, None, 7, LONG), await ask(client, "other", 9, LONG)
        for response in (first, second):
            await client.deltas(response, 3)
        several.history.fault("kill -9 of the core of one model")
        other_core(several).kill()
        for response, number in ((first, 7), (second, 9)):
            assert (await client.done(response)).final == oracle_answer(number, 150)
        reasons = [{frame["reason"] for frame in waited_for(client, it)} for it in (first, second)]
        assert "engine_restart" in reasons[1] and "engine_restart" not in reasons[0]


async def test_an_answer_whose_worker_dies_goes_on_with_its_model(several: Server) -> None:
    async with at_both(several) as clients, asyncio.timeout(PATIENCE):
        asker, watcher = clients
        session = await asker.new_session()
        settings = {**LONG, "model": "other"}
        response = await asker.ask(session, oracle_word(9), settings=settings)
        await asker.deltas(response, 3)
        await watcher.send("session.subscribe", session_id=session)
        await watcher.deltas(response, 1)
        several.history.fault("kill -9 of a worker")
        os.kill(pid_of(await replica_of(asker)), signal.SIGKILL)
        assert (await watcher.done(response)).final == oracle_answer(9, 150)


async def test_a_stop_while_the_model_is_loaded_ends_the_answer_at_once(several: Server) -> None:
    await unload(several, "other")
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        response = await ask(client, "other", 9, LONG)
        await client.next("response.queued")
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        assert answer.done is not None and answer.final == ""
        assert answer.done["response"]["status"] == "cancelled"
        assert (await states(several))["other"] == "loading"
        again = await ask(client, "other", 9, GREEDY)
        assert (await client.done(again)).final == oracle_answer(9, 20)


async def test_a_model_whose_files_have_changed_meanwhile_is_read_anew(several: Server) -> None:
    tokenizer = several.data_dir.parent / "other" / "tokenizer.json"
    words = tokenizer.read_text()
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        await client.done(await ask(client, "other", 9, GREEDY))  # its files are known
        await unload(several, "other")
        tokenizer.write_text(re.sub(r"t(\d{5} |\\\\d)", r"u\1", words))
        response = await client.ask(
            await client.new_session(), "u00009 ", settings=GREEDY | {"model": "other"}
        )
        answer = oracle_answer(9, 20).replace("t", "u")
        assert (await client.done(response)).final == answer
        await unload(several, "other")
        tokenizer.write_text(words)
        response = await ask(client, "other", 9, GREEDY)
        assert (await client.done(response)).final == oracle_answer(9, 20)


async def test_an_answer_outlives_its_server_and_waits_for_the_files_of_its_model(
    several: Server,
) -> None:
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        session = await client.new_session()
        settings = {**LONG, "model": "other"}
        response = await client.ask(session, oracle_word(9), settings=settings)
        await client.deltas(response, 3)
        several.history.fault("kill -9 of all")
        await everything_is_killed(several)
        await client.closed()
    assert several.process is not None
    await asyncio.to_thread(several.process.wait)
    await asyncio.to_thread(several.start)
    async with Client(several) as client, asyncio.timeout(PATIENCE):
        await client.send("session.subscribe", session_id=session)
        assert (await client.done(response)).final == oracle_answer(9, 150)
