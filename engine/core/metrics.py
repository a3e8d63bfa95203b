"""What the core counts, as plain numbers that the server turns into Prometheus series."""

from bisect import bisect_left
from itertools import accumulate
from typing import Any

from engine.core.scheduling.scheduler import Scheduler

STEP_BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class DurationHistogram:
    """Counts of durations by bucket; `le` is an upper bound, the last bucket has none."""

    def __init__(self) -> None:
        self.sum_seconds = 0.0
        self.count = 0
        self._counts = [0] * (len(STEP_BUCKETS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        self.sum_seconds += seconds
        self.count += 1
        self._counts[bisect_left(STEP_BUCKETS_SECONDS, seconds)] += 1

    def snapshot(self) -> dict[str, Any]:
        """`buckets` is a list of [le, cumulative count]."""
        cumulative = list(accumulate(self._counts))
        buckets = [[le, n] for le, n in zip(STEP_BUCKETS_SECONDS, cumulative, strict=False)]
        return {"buckets": buckets, "sum": self.sum_seconds, "count": self.count}


class CoreMetrics:
    """The core's own counters beside those of the scheduler and the block manager."""

    def __init__(
        self,
        model_name: str,
        attn_backend: str,
        *,
        row_multiple: int = 1,
        is_batch_invariant: bool = False,
        is_text_only: bool = False,
    ) -> None:
        self.model_name = model_name
        self.attn_backend = attn_backend
        self.row_multiple = row_multiple
        self.is_batch_invariant = is_batch_invariant
        self.is_text_only = is_text_only
        self.decode_steps = DurationHistogram()  # steps with nothing but decodes
        self.other_steps = DurationHistogram()

    @property
    def num_steps(self) -> int:
        return self.decode_steps.count + self.other_steps.count

    def snapshot(self, scheduler: Scheduler) -> dict[str, Any]:
        stats, totals, blocks = scheduler.stats(), scheduler.totals, scheduler.blocks
        return {
            "model_name": self.model_name,
            "attn_backend": self.attn_backend,
            "batch_invariant": int(self.is_batch_invariant),  # 1: as the probe at load found
            "text_only": int(self.is_text_only),  # 1: without the towers of its checkpoint
            "row_multiple": self.row_multiple,  # to which the rows of a step are padded
            "sleeping": int(stats.is_sleeping),
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "num_waiting_tokens": stats.num_waiting_tokens,
            "num_blocks_total": stats.num_blocks_total,
            "num_blocks_free": stats.num_blocks_free,
            "requests_total": totals.requests,
            "prompt_tokens_total": totals.prompt_tokens,
            "generation_tokens_total": totals.generation_tokens,
            "preemptions_total": totals.preemptions,
            "aborts_total": totals.aborts,
            "prefix_cache_queries_total": blocks.num_queried_tokens,
            "prefix_cache_hits_total": blocks.num_hit_tokens,
            "steps_total": self.num_steps,
            "decode_step_seconds": self.decode_steps.snapshot(),
            "other_step_seconds": self.other_steps.snapshot(),
        }
