"""`Run`: a scheduler that a test steps by hand, over a scripted model, with a clock it moves."""

from typing import Any

from engine.core.scheduling.scheduler import Scheduler
from engine.ipc import SequenceOutput
from tests.engine.helpers.fakes import FakeModel, make_request


class Run:
    """A scheduler with a scripted model and a clock that the test moves."""

    def __init__(self, scheduler: Scheduler, model: FakeModel | None = None) -> None:
        self.scheduler = scheduler
        self.model = model or FakeModel()
        self.now = 100.0
        self.outputs: list[SequenceOutput] = []

    def add(self, request_id: str, *args: int, **fields: Any) -> None:
        self.scheduler.add("me", make_request(request_id, *args, **fields), self.now)

    def step(self) -> dict[str, int]:
        """One step; how many tokens of whom were computed."""
        scheduled = self.scheduler.schedule(self.now)
        if scheduled:
            self.scheduler.update(scheduled, self.model.execute(scheduled), self.now)
        self.outputs += self.scheduler.take_outputs().get("me", [])
        self.scheduler.check_integrity()
        return {item.sequence.request_id: item.num_tokens for item in scheduled}

    def ends(self) -> dict[str, str]:
        self.outputs += self.scheduler.take_outputs().get("me", [])
        ends = [o for o in self.outputs if o.finish_reason is not None]
        assert len({o.request_id for o in ends}) == len(ends), "ended twice"
        return {o.request_id: o.finish_reason or "" for o in ends}

    def tokens(self, request_id: str) -> list[int]:
        return [t for o in self.outputs if o.request_id == request_id for t in o.new_token_ids]
