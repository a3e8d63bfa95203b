"""`Adapters`: what is offered is what is loaded and lies here, no matter who loaded it."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from server.commands.adapters import MAX_LOADED, Adapters, fingerprint
from server.engines.client import (
    LoRARequest,
    RetryableRequestError,
    ServedModel,
    ValidationError,
    hash_adapter,
)
from server.protocol.errors import ApiError
from sessions.directory.adapters import Adapter, AdapterBook
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore
from tests.server.helpers.engines import IdleEngine

BASE = ServedModel("base", "of the base", {"top_k": 20})
FILES = ("adapter_config.json", "adapter_model.safetensors")


class Engine(IdleEngine):
    """Takes every adapter, unless it is to refuse them."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: Exception | None = None
        self.added: list[LoRARequest] = []
        self.removed: list[int] = []

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        if self.refusal is not None:
            raise self.refusal
        self.added.append(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self.removed.append(lora_id)
        return True


class Host:
    """One worker, with a folder of its own."""

    def __init__(self, store: SessionStore, folder: Path) -> None:
        self.folder, self.engine = folder, Engine()
        self.models = {BASE.name: BASE}
        self.book = AdapterBook(store.client, store.keys)
        self.num_announced = 0
        self.adapters = Adapters(
            folder=folder,
            base=BASE,
            models=self.models,
            taken={BASE.name},
            book=self.book,
            engine=self.engine,
            announce=self._announce,
            interval_seconds=60,
        )

    async def _announce(self) -> None:
        self.num_announced += 1

    def make(self, name: str, content: str = "weights") -> None:
        (self.folder / name).mkdir(exist_ok=True)
        for file in FILES:
            (self.folder / name / file).write_text(f"{file} {content}")


@pytest.fixture
def new_host(store: SessionStore, tmp_path: Path) -> Callable[[str], Host]:
    def new(name: str) -> Host:
        (tmp_path / name).mkdir()
        return Host(store, tmp_path / name)

    return new


@pytest.fixture
def host(new_host: Callable[[str], Host]) -> Host:
    host = new_host("host")
    host.make("poet")
    return host


async def test_a_loaded_adapter_is_a_model_with_a_fingerprint_of_its_own(host: Host) -> None:
    loaded = await host.adapters.load("poet", "admin")
    model = host.models["poet"]
    assert host.engine.added == [model.lora_request]
    assert model.lora_request is not None
    assert model.lora_request.content_hash == hash_adapter(host.folder / "poet")
    assert model.lora_request.lora_int_id == loaded.number
    assert model.sampling_defaults == BASE.sampling_defaults
    assert model.fingerprint == fingerprint(BASE.fingerprint, loaded.content_hash)
    assert model.fingerprint not in (BASE.fingerprint, fingerprint("other", loaded.content_hash))
    assert host.num_announced == 1


async def test_the_same_files_are_loaded_once(host: Host) -> None:
    first = await host.adapters.load("poet", "admin")
    assert await host.adapters.load("poet", "another") == first
    assert len(host.engine.added) == 1 and host.num_announced == 1


async def test_another_host_offers_it_if_its_files_are_the_same(
    host: Host, new_host: Callable[[str], Host]
) -> None:
    same, other, without = new_host("same"), new_host("other"), new_host("without")
    same.make("poet")
    other.make("poet", "others")
    loaded = await host.adapters.load("poet", "admin")
    for each in (same, other, without):
        await each.adapters.refresh()
    assert same.models["poet"].fingerprint == host.models["poet"].fingerprint
    request = same.models["poet"].lora_request
    assert request is not None and request.lora_int_id == loaded.number
    assert request.lora_path == str(same.folder / "poet")
    assert list(other.models) == list(without.models) == [BASE.name]
    problems = [(await each.adapters.listing())[0].problem for each in (same, other, without)]
    assert problems == [
        None,
        "its files are not those that were loaded",
        "there is no such folder in PARLEY_LORA_DIR",
    ]


async def test_files_that_come_later_are_noticed(
    host: Host, new_host: Callable[[str], Host]
) -> None:
    late = new_host("late")
    await host.adapters.load("poet", "admin")
    await late.adapters.refresh()
    assert "poet" not in late.models
    shutil.copytree(host.folder / "poet", late.folder / "poet")
    await late.adapters.refresh()
    assert "poet" in late.models


async def test_files_that_change_are_offered_no_more(host: Host) -> None:
    await host.adapters.load("poet", "admin")
    host.make("poet", "other weights")
    await host.adapters.refresh()
    assert "poet" not in host.models
    again = await host.adapters.load("poet", "admin")
    request = host.models["poet"].lora_request
    assert request is not None and request.lora_int_id == again.number


async def test_every_host_forgets_an_adapter_that_is_unloaded(
    host: Host, new_host: Callable[[str], Host]
) -> None:
    other = new_host("other")
    other.make("poet")
    loaded = await host.adapters.load("poet", "admin")
    await other.adapters.refresh()
    await host.adapters.unload("poet")
    await other.adapters.refresh()
    for each in (host, other):
        assert list(each.models) == [BASE.name]
        assert each.engine.removed == [loaded.number]
    with pytest.raises(ApiError, match="no such adapter"):
        await other.adapters.unload("poet")


async def test_what_the_engine_refuses_is_not_loaded(host: Host) -> None:
    problem = f"lora_request: {host.folder}/poet/adapter_config.json: r is 32"
    host.engine.refusal = ValidationError(problem, "lora_request", "")
    with pytest.raises(ApiError) as refused:
        await host.adapters.load("poet", "admin")
    assert (refused.value.code, refused.value.param) == ("invalid_field", "name")
    assert refused.value.message == "poet/adapter_config.json: r is 32"
    host.engine.refusal = RetryableRequestError("no core")
    with pytest.raises(ApiError) as away:
        await host.adapters.load("poet", "admin")
    assert away.value.code == "engine_unavailable"
    assert await host.book.all() == {} and list(host.models) == [BASE.name]


async def test_of_two_loads_at_once_the_engine_keeps_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, add, put = asyncio.Barrier(2), host.engine.add_lora, host.book.put

    async def add_together(request: LoRARequest) -> bool:
        await both.wait()  # neither has seen the other in the store
        return await add(request)

    async def put_together(adapter: Adapter) -> None:
        await put(adapter)
        await both.wait()  # neither looks before both are there

    monkeypatch.setattr(host.engine, "add_lora", add_together)
    monkeypatch.setattr(host.book, "put", put_together)
    await asyncio.gather(*(host.adapters.load("poet", "admin") for _ in range(2)))
    [kept] = (await host.book.all()).values()
    added = {request.lora_int_id for request in host.engine.added}
    assert added - set(host.engine.removed) == {kept.number}
    request = host.models["poet"].lora_request
    assert request is not None and request.lora_int_id == kept.number


async def test_the_engine_forgets_what_the_store_did_not_take(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(adapter: Adapter) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(host.book, "put", fail)
    with pytest.raises(StoreUnavailable):
        await host.adapters.load("poet", "admin")
    assert host.engine.removed == [request.lora_int_id for request in host.engine.added] != []
    assert list(host.models) == [BASE.name]


async def test_no_more_are_loaded_than_are_allowed(host: Host) -> None:
    for number in range(MAX_LOADED):
        await host.book.put(Adapter.load(f"a{number}", "ab", "admin"))
    with pytest.raises(ApiError) as refused:
        await host.adapters.load("poet", "admin")
    assert refused.value.code == "quota_exceeded"


async def test_the_listing_has_what_lies_in_the_folder_and_what_is_loaded_only(
    host: Host,
) -> None:
    host.make("other")
    (host.folder / "linked").symlink_to(host.folder / "poet")
    (host.folder / ".hidden").mkdir()
    (host.folder / "file").write_text("")
    await host.adapters.load("poet", "admin")
    await host.book.put(Adapter.load("elsewhere", "ab", "admin"))
    listed = [(offer.name, offer.loaded is not None) for offer in await host.adapters.listing()]
    assert listed == [("elsewhere", True), ("other", False), ("poet", True)]
