"""`ModelRunner`: weights, KV cache, one forward pass per step, and the choice of tokens.

It is given parts of sequences and gives back tokens; why these and not others is the scheduler's.
On a GPU a step may be started before the last one has ended: what that one chooses is then taken
from the device's own memory.
Logits are computed only for the last token of a sequence whose known tokens end in this step, and
for the tokens of a prompt whose logprobs are asked for: a hook cuts the rows out before the output
layer, which works for every architecture alike. What the layer would have read of a prompt that is
pooled is kept there, and no logits are computed for it.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.fused.gpu_decoder import GpuDecoder
from engine.core.models.loader import LoadedModel
from engine.core.runner.answer_trial import check_answers, trial_parts
from engine.core.runner.decode_graphs import DecodeGraphs, Record
from engine.core.runner.invariance import RowInvariance, RowProbe
from engine.core.runner.sizes import cache_bytes_per_token, resolve_sizes
from engine.core.sampling.pooler import pool_prompts
from engine.core.sampling.prompt_scores import score_prompts
from engine.core.sampling.sampler import Choices, Sampler
from engine.core.sampling.token_logprobs import LogprobsMode
from engine.core.scheduling.sequence import ScheduledSequence, Sequence, Tokens
from engine.core.structured.masks import Masks
from engine.core.tensors.batch import Batch, BatchMemory, build_batch
from engine.core.tensors.kv_cache import allocate_cache
from engine.core.tensors.transfers import Download, Upload
from engine.errors import UnsupportedModelError

logger = logging.getLogger(__name__)


class ModelRunner:
    """Runs steps. `config` is the given one with every size decided."""

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, masks: Masks | None = None
    ) -> None:
        self.loaded = loaded
        self.masks = masks  # of answers that keep to a grammar
        self.config = resolve_sizes(config, loaded)
        self._context = loaded.context
        ops = loaded.context.ops
        self._batch_memory = BatchMemory()
        self._upload = Upload(loaded.device) if loaded.device.type == "cuda" else None
        self._download = Download(loaded.device, config.max_num_seqs)
        # What the last step chose, in the order of its sampled rows.
        self._chosen = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=loaded.device)
        edits = Upload(loaded.device) if loaded.device.type == "cuda" else list
        self._mode = LogprobsMode.of(config.logprobs_mode)
        self._sampler = Sampler(ops.choose_tokens, ops.penalize, edits, self._mode)
        self._hidden: Tensor | None = None  # [num_hidden, width], of the last pass
        _allocate_cache(loaded, self.config)
        self.embedding_size = self._hook_output_layer()
        self.graphs: DecodeGraphs | None = None  # of a GPU
        self._has_graphs = False  # wherever there is a cache
        self._record: Record | None = None
        check_answers(loaded, self._compute_trial)
        self.invariance = RowInvariance()
        probe = RowProbe(loaded, self.config, self.forward)
        if config.batch_invariant and loaded.device.type == "cpu":
            self.invariance = probe.run()
        else:
            probe.check()
            if config.batch_invariant:
                logger.info("on a GPU the last bits of logits may depend on the batch")
        if isinstance(loaded.fused, FusedDecoder):
            loaded.fused.drop_logits()  # the probe's have as many rows as no step needs again soon
        if isinstance(loaded.fused, GpuDecoder) and not config.enforce_eager:
            if loaded.device.type == "cuda":
                self.record_decodes()

    def _hook_output_layer(self) -> int:
        """Have the last hidden states cut where they are read; how wide they are."""
        if self.loaded.fused is not None:
            return self.loaded.fused.shape.hidden_size
        model: Any = self.loaded.model
        output_layer: nn.Module = model.get_output_embeddings()
        output_layer.register_forward_pre_hook(self._keep_sampled_rows)
        return int(model.get_output_embeddings().weight.shape[1])

    # ---- sleep: between two steps

    def drop_cache(self) -> None:
        """Give the memory of all keys and values back, and what was recorded over it."""
        if self.loaded.fused is not None:
            self.loaded.fused.drop_cache()
        for layer in self.loaded.layers:
            layer.key_cache = layer.value_cache = None
        self.graphs = self._hidden = self._context.batch = None

    def allocate_cache(self) -> None:
        """Another one in its place, empty. Raises UnsupportedModelError if there is no memory."""
        _allocate_cache(self.loaded, self.config)
        if self._has_graphs:
            self.record_decodes(self._record)

    def replace_model(self, loaded: LoadedModel) -> None:
        """Compute the same model from here on, loaded once more and still without a cache.

        It was tried and probed when it was loaded first, and its bits are the same.
        """
        loaded.context.row_multiple = self._context.row_multiple
        self.loaded, self._context = loaded, loaded.context
        self._hook_output_layer()

    # ---- steps

    def caches(self) -> list[Tensor]:
        """The memory of all keys and values, and of their scales. On a GPU blocks come first."""
        fused = self.loaded.fused
        if fused is not None:
            return fused.caches
        return [cache for layer in self.loaded.layers for cache in layer.caches]

    @property
    def runs_ahead(self) -> bool:
        """Whether steps are to be started before the last one has ended."""
        wanted, is_on_gpu = self.config.async_scheduling, self.loaded.device.type == "cuda"
        return not self.config.pace and (is_on_gpu if wanted is None else wanted)

    def _compute_trial(self) -> Tensor:
        parts = trial_parts(self.loaded.vocab_size, self.config)
        sampled = [part.sequence for part in parts]
        with torch.inference_mode():
            self._clear_ends(parts)
            choices = self._sampler.choices(sampled, self.loaded.vocab_size)
            return self._compute(parts, choices)[0]

    def launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        """Start to compute these parts. What is returned waits for them, once.

        It gives a token, or what a pooled prompt becomes, for each sequence that reached its last
        known token.
        """
        prompts = [item for item in scheduled if not item.is_decode]
        is_pooling = any(item.sequence.pooling is not None for item in prompts)
        sampled = [item.sequence for item in scheduled if item.is_sampled]
        with torch.inference_mode():
            self._clear_ends(scheduled)
            self._copy_beginnings(scheduled)
            choices = self._sampler.choices(sampled, self.loaded.vocab_size)
            masks = None if self.masks is None else self.masks.begin(sampled, self._may_offer)
            logits, choices = self._compute(scheduled, choices)
            if any(item.scored for item in prompts):  # before the next step writes over them
                score_prompts(scheduled, logits[len(sampled) :], self._mode)
                logits = logits[: len(sampled)]
            tokens = self._chosen[: len(sampled)]
            # Also where nothing was sampled: those who wait for the end of a step rely on it.
            read = self._download.start
            wait = self._sampler.sample(logits, sampled, choices, tokens, read, masks)
        hidden = self._hidden

        def results() -> Tokens:
            chosen = iter(wait())
            results: Tokens = [next(chosen) if item.is_sampled else None for item in scheduled]
            if is_pooling:
                pool_prompts(scheduled, hidden, results, self.loaded.head)
            return results

        return results

    def _may_offer(self, sequence: Sequence) -> bool:
        """Whether its token may be looked at before its mask is made.

        On a GPU the next step would wait for that, and there masks cost nothing beside the model.
        """
        return self._upload is None and self._sampler.may_offer(sequence)

    def _clear_ends(self, scheduled: list[ScheduledSequence]) -> None:
        """Of attention that reads whole blocks: the last one of each sequence, where it is new.

        After the sequence it may hold anything from its former users, NaN as well.
        """
        attention, size = self._context.attention, self.config.block_size
        if attention is None or not attention.reads_whole_pages:
            return
        for item in scheduled:
            place = item.end // size
            is_new = place * size >= item.start or item.sequence.copied_from is not None
            if item.end % size and is_new:
                block = item.sequence.block_table[place]
                for cache in self.caches():
                    cache[block].zero_()

    def _copy_beginnings(self, scheduled: list[ScheduledSequence]) -> None:
        """What of the next block of a sequence another block holds already."""
        for item in scheduled:
            sequence = item.sequence
            if sequence.copied_from is not None:
                source, num_tokens = sequence.copied_from
                place = item.start // self.config.block_size
                target = sequence.block_table[place]
                for cache in self.caches():
                    copied = cache[..., :num_tokens, :, :]
                    copied[target] = copied[source]

    def record_decodes(self, record: Record | None = None) -> None:
        """From now on steps of decodes alone are replayed. `record` is that of CUDA by default."""
        config = self.config
        self._has_graphs, self._record = True, record
        assert config.max_model_len is not None
        with torch.inference_mode():
            self.graphs = DecodeGraphs(
                self._forward,
                max_num_seqs=config.max_num_seqs,
                max_blocks=-(-config.max_model_len // config.block_size),
                block_size=config.block_size,
                device=self.loaded.device,
                record=record,
            )

    def _compute(
        self, scheduled: list[ScheduledSequence], choices: Choices
    ) -> tuple[Tensor, Choices]:
        """The logits of the sampled parts, in their order, and their choices beside them.

        Those of scored tokens follow, in the order of the parts.
        """
        if self.graphs is not None:
            if (replayed := self.graphs.run(scheduled, choices)) is not None:
                return replayed
        multiple, memory = self._context.row_multiple, self._batch_memory
        batch = build_batch(scheduled, self.config.block_size, multiple, memory)
        if self._upload is not None:
            batch, sent = self._upload.send_batch(batch, choices)
            choices = Choices(*sent)
        return self.forward(batch), choices

    def forward(self, batch: Batch) -> Tensor:
        """One pass over the model; the logits of its wanted rows, [num_wanted, vocab] float32.

        The next pass may write over them.
        """
        return self._forward(batch).float()

    def _forward(self, batch: Batch) -> Tensor:
        """Logits as they come, of the type of the weights or float32."""
        if batch.unknown_rows is not None:
            batch = _with_chosen(batch, batch.unknown_rows, self._chosen)
        if self.loaded.fused is not None:
            logits = self.loaded.fused.forward(batch)
            self._hidden = self.loaded.fused.hidden
            return logits
        self._context.batch = batch
        self._hidden = None
        of_model: Tensor = self.loaded.model(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
        ).logits
        return of_model[0, : batch.num_wanted]

    def _keep_sampled_rows(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before the output layer: [1, num_rows, width] → [1, num_logits, width]."""
        batch = self._context.batch
        if batch is None or batch.num_sampled == batch.num_tokens:
            return args
        if batch.hidden_rows is not None:
            self._hidden = args[0][0, batch.hidden_rows]
        return (args[0][:, batch.logits_rows], *args[1:])


def _with_chosen(batch: Batch, unknown_rows: Tensor, chosen: Tensor) -> Batch:
    """The batch with the tokens that the step before chose. chosen: [max_num_seqs] int64."""
    tokens = chosen[unknown_rows.clamp(min=0)]
    tokens = tokens.clamp(min=0)  # an error's is -1: what follows it will be thrown away
    ids = torch.where(unknown_rows < 0, batch.input_ids, tokens)
    return dataclasses.replace(batch, input_ids=ids)


def _allocate_cache(loaded: LoadedModel, config: EngineConfig) -> None:
    """Raises UnsupportedModelError if the system refuses so much memory at once."""
    assert config.num_blocks is not None
    num_bytes = config.num_blocks * config.block_size * cache_bytes_per_token(loaded)
    try:
        _allocate_layers(loaded, config)
    except (MemoryError, torch.OutOfMemoryError):
        raise UnsupportedModelError(
            f"there is no memory for {config.num_blocks} blocks of the KV cache: "
            f"{num_bytes / 2**30:.1f} GiB"
        ) from None


def _allocate_layers(loaded: LoadedModel, config: EngineConfig) -> None:
    assert config.num_blocks is not None and config.max_model_len is not None
    if loaded.fused is not None:
        loaded.fused.allocate_cache(config.num_blocks, config.max_model_len)
        return
    sizes = (config.num_blocks, config.block_size)
    for layer in loaded.layers:
        shape = layer.shapes[0]
        heads, dtype = shape.num_kv_heads, shape.dtype
        key_dim, value_dim, device = shape.head_dim, shape.value_head_dim, loaded.device
        layer.key_cache = allocate_cache(*sizes, heads, key_dim, dtype, True, device)
        layer.value_cache = allocate_cache(*sizes, heads, value_dim, dtype, False, device)
