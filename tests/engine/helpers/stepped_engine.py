"""Runner and scheduler on a real model, stepped by hand: no process, no socket, no clock."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.attention.backends import UNIT_TOKENS
from engine.core.models.loader import choose_device, load_model
from engine.core.models.lora.shelf import AdapterShelf
from engine.core.ops import library as ops
from engine.core.runner.model_runner import ModelRunner
from engine.core.sampling.logits_processors import LogitsProcessors
from engine.core.scheduling.block_manager import BlockManager
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import ScheduledSequence, Tokens
from engine.core.structured.grammars import Grammars
from engine.core.structured.masks import Masks
from engine.ipc import SequenceOutput
from engine.lora import LoRARequest
from tests.engine.helpers.fakes import make_request
from tests.helpers.patience import PATIENCE

Logprobs = list[list[tuple[int, float, int]]]


class SteppedEngine:
    """What `engine.core` puts together, for one client called "me".

    `logits[id]` is kept, a row of [vocab] per token of the answer, if `keeps_logits`. With
    `runs_ahead` each step is started before the last one has ended.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keeps_logits: bool = False,
        runs_ahead: bool = False,
        ends_at_eos: bool = False,
        **settings: Any,
    ) -> None:
        config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
        chosen = ops.choose(config.attn_backend, choose_device(config.device))
        loaded = load_model(config, chosen)
        self._is_ready = threading.Event()  # some grammar
        self.grammars = Grammars(
            folder,
            loaded.vocab_size,
            loaded.eos_token_ids,
            config.max_num_seqs,
            self._is_ready.set,
        )
        self.runner = ModelRunner(loaded, config, Masks(self.grammars))
        resolved = self.runner.config
        assert resolved.num_blocks is not None
        blocks = BlockManager(
            resolved.num_blocks, resolved.block_size, resolved.enable_prefix_caching, UNIT_TOKENS
        )
        self.adapters: AdapterShelf | None = None
        if loaded.adapters is not None:
            self.adapters = AdapterShelf(
                loaded.adapters,
                max_rank=config.max_lora_rank,
                max_adapters=config.max_cpu_loras or config.max_loras,
            )
        self.scheduler = Scheduler(
            self.runner.config,
            blocks,
            loaded.vocab_size,
            loaded.eos_token_ids if ends_at_eos else (),
            tasks=loaded.tasks,
            adapters=self.adapters,
        )
        self._processors = LogitsProcessors.load(resolved, loaded.device)
        self.runs_ahead = runs_ahead
        self._in_flight: tuple[list[ScheduledSequence], Callable[[], Tokens]] | None = None
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, Logprobs] = {}
        self.prompt_logprobs: dict[str, Logprobs] = {}
        self.prompt_id_logprobs: dict[str, bytes] = {}
        self.logits: dict[str, list[torch.Tensor]] = {}
        self.ends: dict[str, SequenceOutput] = {}
        self.warnings: list[str] = []  # of grammars
        if keeps_logits:
            self._keep_logits()

    def add(self, request_id: str, prompt: list[int], **params: Any) -> None:
        params = {"max_tokens": 24, "ignore_eos": True} | params
        request = make_request(request_id, prompt=prompt, **params)
        sequence = self.scheduler.add("me", request, 0.0)
        if sequence is None or sequence.is_finished:
            return
        if problem := self._processors.prepare(sequence) or self.grammars.prepare(sequence):
            self.scheduler.finish(sequence, "error", error=problem)

    def adapter(self, number: int, folder: Path) -> LoRARequest:
        """What a request says that has the adapter of a folder."""
        assert self.adapters is not None
        request = LoRARequest(folder.name, number, str(folder))
        return request.located(self.adapters.add(request, (), is_needed_here=False))

    def step(self) -> None:
        for ready in self.grammars.take_ready():
            self.scheduler.let_go_on(*ready)
        scheduled = self.scheduler.schedule(0.0)
        wait = self.runner.launch(scheduled) if scheduled else None
        self._end_step()
        if wait is not None:
            self._in_flight = (scheduled, wait)
            if self.runs_ahead and not any(
                item.is_last and item.sequence.waits_for_tokens for item in scheduled
            ):
                self.scheduler.anticipate(scheduled)
            else:
                self._end_step()
        self.take_outputs()

    def take_outputs(self) -> None:
        """Take up what the scheduler has said."""
        for output in self.scheduler.take_outputs().get("me", []):
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            self.logprobs.setdefault(output.request_id, []).extend(output.logprobs or [])
            of_prompt = self.prompt_logprobs.setdefault(output.request_id, [])
            of_prompt.extend(output.prompt_logprobs or [])
            of_ids = self.prompt_id_logprobs.get(output.request_id, b"")
            self.prompt_id_logprobs[output.request_id] = of_ids + (
                output.prompt_token_id_logprobs or b""
            )
            self.warnings += output.warnings
            if output.finish_reason is not None:
                self.ends[output.request_id] = output

    def run(self) -> None:
        """Step until all is answered; then every block must be free."""
        while self.scheduler.sequences or self._in_flight:
            self.step()
            if all(it.waits_for_grammar for it in self.scheduler.sequences.values()):
                self.wait_for_grammars()
        self.take_outputs()
        self.scheduler.check_integrity()
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_blocks

    def wait_for_grammars(self) -> None:
        """Until those that wait for theirs have been told."""
        while any(it.waits_for_grammar for it in self.scheduler.sequences.values()):
            assert self._is_ready.wait(PATIENCE)
            self._is_ready.clear()
            for ready in self.grammars.take_ready():
                self.scheduler.let_go_on(*ready)

    def close(self) -> None:
        """End the processes of grammars."""
        self.grammars.close()

    def _end_step(self) -> None:
        step, self._in_flight = self._in_flight, None
        if step is not None:
            scheduled, wait = step
            self.scheduler.update(scheduled, wait(), 0.0)

    def _keep_logits(self) -> None:
        sampler = self.runner._sampler
        sample = sampler.sample

        def kept(logits: torch.Tensor, sequences: Any, *others: Any) -> Any:
            for row, sequence in zip(logits, sequences, strict=True):
                rows = self.logits.setdefault(sequence.request_id, [])
                del rows[sequence.num_output_tokens :]  # which a preemption made unknown again
                rows.append(row.clone())
            return sample(logits, sequences, *others)

        vars(sampler).update(sample=kept)
