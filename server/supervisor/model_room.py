"""`ModelRoom`: whether a model fits into the memory beside those that are loaded, or who goes."""

from collections.abc import Callable, Collection

from server.config.models import ModelFacts, ModelState, gb
from server.supervisor.kept_model import KeptModel

HERE = (ModelState.LOADED, ModelState.UNLOADING)


class ModelRoom:
    """`system_free_bytes` is what the system has for models; None: nobody knows."""

    def __init__(
        self, models: Collection[KeptModel], system_free_bytes: Callable[[], int | None]
    ) -> None:
        self._models = models
        self._system_free_bytes = system_free_bytes

    def free_bytes(self) -> int | None:
        """For further models: what is free, without what those that are here still take."""
        free = self._system_free_bytes()
        if free is None:
            return None
        for model in self._models:
            is_here = model.status.state in HERE or model.status.stage == "loading"
            if is_here and model.engine is not None:
                free -= max(0, model.promised_bytes - model.engine.taken_bytes)
        return max(0, free)

    def most_free_bytes(self) -> int | None:
        """If all that are loaded went, as they may until a download has come. In any thread."""
        free = self._system_free_bytes()
        engines = [engine for model in self._models if (engine := model.engine)]
        return None if free is None else free + sum(engine.taken_bytes for engine in engines)

    def that_make_room(self, num_bytes: int) -> list[KeptModel]:
        """The idle models that have to go for so much memory, the longest unused one first."""
        idle = sorted(
            (model for model in self._models if model.is_idle), key=lambda model: model.used_at
        )
        chosen: list[KeptModel] = []
        for model in idle:
            if num_bytes <= 0:
                break
            chosen.append(model)
            num_bytes -= model.promised_bytes
        return chosen if num_bytes <= 0 else []

    def misfit(self, facts: ModelFacts, needs: int, free: int) -> str:
        """Why a model does not fit, in one line, with a way that would."""
        used = [m.name for m in self._models if m.users and m.status.state in HERE]
        verb = "is" if len(used) == 1 else "are"
        others = f" while {', '.join(used)} {verb} in use" if used else ""
        ways = [way for way, num_bytes in facts.smaller.items() if num_bytes <= free]
        hint = f": try {ways[0]}" if ways else ""
        return f"it needs {gb(needs)} of memory, {gb(free)} are free{others}{hint}"
