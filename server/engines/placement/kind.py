"""`GroupKind`: several engines as one, of whatever kinds they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from server.config.engines import NATIVE, EngineEntry
from server.config.models import EngineStatus
from server.engines.client import CoreState, EngineClient, ServedModel
from server.engines.managed import EngineSetupError
from server.engines.placement.group import EngineGroup

if TYPE_CHECKING:
    from server.config.models import ModelSource
    from server.config.settings import Settings
    from server.engines.kind import EngineKind
    from server.engines.managed import ManagedEngine
    from server.engines.placement.keeper import GroupKeeper
    from server.engines.tracing import Tracing

TEXT_KINDS = ("openai",)  # which know no token ids


class GroupKind:
    """`kinds` are those of the engines in it, by name; `lead` is that of the first of them."""

    def __init__(self, kinds: "Mapping[str, EngineKind]", lead: str = NATIVE) -> None:
        self._kinds, self._lead = kinds, lead

    def led_by(self, lead: str) -> "GroupKind":
        """Of engines of which the first is of this kind."""
        return GroupKind(self._kinds, lead)

    def manage(
        self,
        settings: "Settings",
        model: "ModelSource",
        entry: EngineEntry,
        wake: Callable[[], None],
        on_progress: Callable[[float], None] | None = None,
        most_free: Callable[[], int | None] | None = None,
    ) -> "GroupKeeper":
        """Get all engines ready that serve this model. Raises `EngineSetupError`."""
        from server.engines.placement.keeper import GroupKeeper  # which workers need not import

        entries = self.entries_of(settings, model)
        # Also for one that is added later: with other shares it would compute otherwise.
        num_sharing = sum(one.kind == NATIVE and one.url is None for one in entries)

        def prepare(one: EngineEntry) -> "ManagedEngine":
            kind, shared = self._kinds[one.kind], replace(one, num_sharing=max(1, num_sharing))
            return kind.manage(settings, model, shared, wake, on_progress, most_free)

        prepared: list[tuple[EngineEntry, ManagedEngine]] = []
        try:
            for one in entries:
                prepared.append((one, prepare(one)))
        except EngineSetupError:
            for _, engine in prepared:
                engine.clean_up()
            raise
        return GroupKeeper(prepared, prepare=prepare, wake=wake, check=_check_alike)

    def statuses_of(self, settings: "Settings", model: "ModelSource") -> "tuple[EngineStatus, ...]":
        """Of the engines of a model whose files nobody has looked at yet."""
        try:
            return tuple(map(EngineStatus.of, self.entries_of(settings, model)))
        except EngineSetupError:  # which is said when somebody asks that model
            return ()

    def entries_of(self, settings: "Settings", model: "ModelSource") -> Sequence[EngineEntry]:
        """The engines of a model: those for it, and those that are for any.

        An engine at an address has one model: the default one, unless it is said to be for another.
        Raises `EngineSetupError` if there are none, or if they cannot go on with each other's
        answers.
        """
        name, is_default = self.name_of(model), model == settings.models[0]
        found = [
            entry
            for entry in settings.engine_entries
            if (entry.serves == name if entry.serves else entry.url is None or is_default)
        ]
        if not found:
            raise EngineSetupError(f"no engine serves {name}: give one as ;for={name}")
        _check_alike(found)
        return found

    def name_of(self, model: "ModelSource") -> str:
        return self._kinds[self._lead].name_of(model)

    def is_here(self, model: "ModelSource") -> bool:
        return self._kinds[self._lead].is_here(model)

    def free_bytes(self, settings: "Settings") -> int | None:
        entries = settings.engine_entries
        are_ours = any(entry.kind == NATIVE and entry.url is None for entry in entries)
        return self._kinds[NATIVE if are_ours else self._lead].free_bytes(settings)

    def connect(
        self,
        options: Mapping[str, Any],
        *,
        on_core_state: Callable[[CoreState, str], None],
        tracing: "Tracing | None" = None,
        tokenizer: Any = None,
    ) -> EngineClient:
        """A group without engines, which `EngineGroup.take` joins."""
        if tokenizer is None:
            tokenizer = self.read_tokenizer(options)

        def join(
            status: "EngineStatus", take_state: Callable[[CoreState, str], None]
        ) -> EngineClient:
            assert status.options is not None
            return self._kinds[status.kind].connect(
                status.options, on_core_state=take_state, tracing=tracing, tokenizer=tokenizer
            )

        return EngineGroup(join, on_core_state)

    def read_tokenizer(self, options: Mapping[str, Any]) -> Any:
        """One for all of them: it may be large."""
        return self._kinds[options["kind"]].read_tokenizer(options["options"])

    def served_model(self, options: Mapping[str, Any]) -> ServedModel:
        return self._kinds[options["kind"]].served_model(options["options"])


def _check_alike(entries: Sequence[EngineEntry]) -> None:
    """Each must be able to go on with what another has begun."""
    texts = [entry.name for entry in entries if entry.kind in TEXT_KINDS]
    if texts and len(texts) < len(entries):
        raise EngineSetupError(f"{texts[0]} knows no token ids: it cannot stand beside others")
