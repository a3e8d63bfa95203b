"""Several engines over HTTP, for admins: how each is; drain one, add one, let one go.

Each host has its own: what is said and done here is of the host of the worker that answers.
"""

from collections.abc import Awaitable
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.access.audit import OPERATE, TRANSCRIPTS
from server.api.admin.actions import Admin
from server.api.admin.objects import AdminEngineList, AskedEngine
from server.api.admin.sessions import Reason, actor_of
from server.api.rest.operation import Access, Call, Operation, json_response
from server.config.engines import FILES, EngineEntry, parse_engines
from server.config.models import discreet
from server.engines.managed import EngineRefused
from server.engines.models import Models
from server.engines.placement.figures import EngineFigures
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field
from server.protocol.titles import given_line

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class EngineOf(Struct, frozen=True):
    """`model`: whose engine, where several models have one of this name; null: of all of them."""

    model: ModelName | None = None


class ResumeEngineBody(EngineOf, frozen=True):
    pass


class DrainEngineBody(EngineOf, frozen=True):
    """`move`: also the answers that it has go on at others."""

    move: bool = False


class RestartEngineBody(Struct, frozen=True):
    """`model`: whose engine; it is needed where several models have one of this name."""

    model: ModelName | None = None
    reason: Reason = ""


class EngineBody(Struct, frozen=True):
    """As `PARLEY_ENGINES` has them, with a name."""

    engine: Annotated[str, Meta(min_length=1, max_length=1000)]


class AdminEngineOperations:
    """The endpoints. Where a model has one engine alone, there is nothing but to restart it."""

    def __init__(self, admin: Admin, models: Models) -> None:
        self._admin = admin
        self._models = models

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/engines",
                access=Access.ADMIN,
                endpoint=self.listing,
                summary="The engines of this worker's host, where a model has several",
                answers={200: AdminEngineList},
            ),
            Operation(
                method="POST",
                path="/v1/admin/engines",
                access=Access.ADMIN,
                endpoint=self.add,
                summary="Add an engine",
                body=EngineBody,
                answers={202: AskedEngine},
            ),
            Operation(
                method="POST",
                path="/v1/admin/engines/{name}/drain",
                access=Access.ADMIN,
                endpoint=self.drain,
                summary="Have an engine take no new answers",
                body=DrainEngineBody,
                answers={202: AskedEngine},
            ),
            Operation(
                method="POST",
                path="/v1/admin/engines/{name}/resume",
                access=Access.ADMIN,
                endpoint=self.resume,
                summary="Have an engine take new answers again",
                body=ResumeEngineBody,
                answers={202: AskedEngine},
            ),
            Operation(
                method="POST",
                path="/v1/admin/engines/{name}/restart",
                access=Access.ADMIN,
                scope=OPERATE,
                endpoint=self.restart,
                summary="Have an engine of this host start again; its answers go on",
                body=RestartEngineBody,
                answers={202: AskedEngine},
            ),
            Operation(
                method="DELETE",
                path="/v1/admin/engines/{name}",
                access=Access.ADMIN,
                endpoint=self.remove,
                summary="Let an engine go; its answers go on at others",
                query=EngineOf,
                answers={202: AskedEngine},
            ),
        ]

    async def listing(self, call: Call) -> Response:
        found = self._models.engine_figures()
        listed = [_wire(model, one) for model, figures in found.items() for one in figures]
        return json_response({"engines": listed})

    async def drain(self, call: Call) -> Response:
        body: DrainEngineBody = to_struct(await call.body(), DrainEngineBody)
        name, model = self._known(call, body.model), body.model
        self._check_others(name, model)
        await self._note(call, "engine.drain", name, model or "")
        drains = self._models.drain(name, model, is_draining=True, must_move=body.move)
        return await _asked(name, drains)

    async def resume(self, call: Call) -> Response:
        body = to_struct(await call.body(), ResumeEngineBody)
        name, model = self._known(call, body.model), body.model
        await self._note(call, "engine.resume", name, model or "")
        return await _asked(name, self._models.drain(name, model, is_draining=False))

    async def restart(self, call: Call) -> Response:
        body: RestartEngineBody = to_struct(await call.body(), RestartEngineBody)
        name, reason = call.path("name"), given_line("reason", body.reason)
        self._check_model(body.model)
        if name not in {model.name for model in self._models.statuses if not model.engines}:
            self._known(call, body.model)
        await self._note(call, "engine.restart", name, f"{body.model or ''} {reason}".strip())
        return await _asked(name, self._models.restart_engine(name, body.model))

    async def remove(self, call: Call) -> Response:
        model: str | None = call.query.model
        name = self._known(call, model)
        self._check_others(name, model)
        await self._note(call, "engine.remove", name, model or "")
        return await _asked(name, self._models.remove_engine(name, model))

    async def add(self, call: Call) -> Response:
        body: EngineBody = to_struct(await call.body(), EngineBody)
        entry = _entry(body.engine)
        if entry.url is not None and not actor_of(call).sees_transcripts:
            problem = f"who runs that engine reads what users write: it needs {TRANSCRIPTS}"
            raise ApiError("forbidden", problem, param="engine")
        await self._note(call, "engine.add", body.engine)
        return await _asked(entry.name, self._models.add_engine(body.engine))

    def _check_model(self, name: str | None) -> None:
        if name not in (None, *(model.name for model in self._models.statuses)):
            raise ApiError("model_not_found", "this host has no such model", param="model")

    def _known(self, call: Call, model: str | None) -> str:
        self._check_model(model)
        name = call.path("name")
        if not any(one.name == name for figures in self._of(model) for one in figures):
            raise ApiError("not_found", "this host has no such engine")
        return name

    def _check_others(self, name: str, model: str | None) -> None:
        """Somebody must answer, as far as this worker sees; the supervisor has the last word."""
        for figures in self._of(model):
            states = {one.name: one.state for one in figures if not one.is_draining}
            is_loaded = states.pop(name, "not_loaded") != "not_loaded"
            if is_loaded and "ready" not in states.values():
                raise ApiError("engine_refused", "no other engine takes answers")

    def _of(self, model: str | None) -> list[list[EngineFigures]]:
        """The engines of this model, or of each."""
        found = self._models.engine_figures()
        return [figures for name, figures in found.items() if model in (None, name)]

    async def _note(self, call: Call, action: str, target: str, reason: str = "") -> None:
        await self._admin.auditor.note(actor_of(call), action, target, reason)


async def _asked(name: str, asking: Awaitable[None]) -> Response:
    """Raises `ApiError` for what the supervisor refuses."""
    try:
        await asking
    except EngineRefused as refusal:
        raise ApiError("engine_refused", discreet(str(refusal))) from None
    except TimeoutError:
        raise ApiError("engine_unavailable", "the supervisor has not answered") from None
    return json_response({"name": name}, 202)


def _entry(text: str) -> EngineEntry:
    """Raises `ApiError`. Files are named by nobody but the operator."""
    try:
        entries = parse_engines([text])
    except ValueError as error:
        raise invalid_field("engine", f"{error}") from error
    if len(entries) != 1:
        raise invalid_field("engine", "engines are added one by one")
    for option in FILES:
        if "/" in entries[0].options.get(option, ""):
            raise invalid_field("engine", f"{option}: a file's name, without its folder")
    return entries[0]


def _wire(model: str, one: EngineFigures) -> dict[str, object]:
    fields: dict[str, object | None] = {
        "url": one.url,
        "problem": None if one.problem is None else discreet(one.problem),
        "running": one.num_running,
        "waiting": one.num_waiting,
        "kv_blocks": one.num_blocks,
        "kv_blocks_free": one.num_blocks_free,
        "exactness": None if one.exactness is None else one.exactness.value,
        "incarnation": one.incarnation,
    }
    return {
        "name": one.name,
        "model": model,
        "kind": one.kind,
        "weight": one.weight,
        "state": one.state,
        "draining": one.is_draining,
        "answers": one.num_answers,
        "sessions": one.num_sessions,
        "moved": one.num_moved,
        **{name: value for name, value in fields.items() if value is not None},
    }
