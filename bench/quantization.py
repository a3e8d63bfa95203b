"""`python -m bench.quantization`: what `--quantize` and `--kv-cache-dtype int8` change.

The demo model reads documents of its own generator that it was not trained on, and a model with
random weights at real dimensions reads random tokens. The fused decoder reads both: with float32
weights, with bfloat16, int8 and int4, and some of these with keys and values in 8 bits. Its
predictions after each token are compared with those of float32 and bfloat16, and greedy answers,
each continued from its own tokens, with those of bfloat16.
"""

import argparse
import dataclasses
import itertools
import json
import tempfile
from array import array
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from bench.demo_model.corpus import Corpus, encode
from bench.demo_model.generator.grammar import load_rules
from bench.harness.report import Figure, report
from engine import demo_model
from engine.config import EngineConfig
from engine.core.models.loader import load_model
from engine.core.ops import library as ops
from engine.core.runner.model_runner import ModelRunner
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import build_batch
from engine.sampling_params import SamplingParams

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8, int8 cache": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
REFERENCES = ("float32", "bfloat16")
CONTEXT = 512
PROMPT_TOKENS = 32
ANSWER_TOKENS = 64  # at most
NUM_PROMPTS = 64
ANSWER_BLOCKS = -(-(PROMPT_TOKENS + ANSWER_TOKENS) // 16)
CORPUS_SEED = 20261121  # not the training's
RANDOM_MODEL = {  # a llama of 96 million weights
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}


class Reader:
    """A model in one format."""

    def __init__(self, folder: Path, settings: dict[str, Any], load_format: str = "auto") -> None:
        config = EngineConfig(
            model=str(folder),
            address="",
            served_model_name="",
            load_format=load_format,
            model_impl="fused",
            max_model_len=CONTEXT,
            num_blocks=max(CONTEXT // 16, NUM_PROMPTS * ANSWER_BLOCKS),
            batch_invariant=False,
            **settings,
        )
        self._runner = ModelRunner(load_model(config, ops.choose("cpu")), config)

    def logits(self, token_ids: list[int]) -> Tensor:
        """After each token: [num_tokens, vocab]."""
        sequence = Sequence("", "reader", token_ids, SamplingParams())
        sequence.block_table = array("i", range(CONTEXT // 16))
        batch = build_batch([ScheduledSequence(sequence, len(token_ids))], 16)
        rows = torch.arange(len(token_ids))
        batch = dataclasses.replace(batch, logits_rows=rows, num_sampled=len(token_ids))
        return self._runner.forward(batch)

    def answers(self, prompts: list[list[int]]) -> list[list[int]]:
        """Greedy ones to all prompts at once, up to the end of the text."""
        sequences = [Sequence("", "reader", prompt, SamplingParams()) for prompt in prompts]
        for number, sequence in enumerate(sequences):
            first = number * ANSWER_BLOCKS
            sequence.block_table = array("i", range(first, first + ANSWER_BLOCKS))
        for _ in range(ANSWER_TOKENS):
            scheduled = [ScheduledSequence(each, each.num_uncomputed_tokens) for each in sequences]
            logits = self._runner.forward(build_batch(scheduled, 16))
            for sequence, token_id in zip(sequences, logits.argmax(-1).tolist(), strict=True):
                sequence.num_computed_tokens = sequence.num_tokens
                sequence.token_ids.append(token_id)
        ends = set(self._runner.loaded.eos_token_ids)
        answers = (sequence.token_ids[PROMPT_TOKENS:] for sequence in sequences)
        return [list(itertools.takewhile(lambda id: id not in ends, ids)) for ids in answers]


@dataclasses.dataclass(slots=True)
class Likeness:
    """Of one format's predictions to those of another."""

    divergence: float = 0.0  # Kullback-Leibler, from the other's distributions, in nats
    num_alike: int = 0  # positions whose best token is the other's

    def add(self, expected: Tensor, found: Tensor) -> None:
        """Both are logarithms of probabilities, [num_tokens, vocab]."""
        self.divergence += float((expected.exp() * (expected - found)).sum())
        self.num_alike += int((expected.argmax(-1) == found.argmax(-1)).sum())


@dataclasses.dataclass(slots=True)
class Comparison:
    """One format beside the references, over all tokens read."""

    loss: float = 0.0  # of the texts' own next tokens, in nats
    num_tokens: int = 0
    likeness: dict[str, Likeness] = dataclasses.field(
        default_factory=lambda: {reference: Likeness() for reference in REFERENCES}
    )

    def add(self, found: Tensor, references: dict[str, Tensor], next_ids: list[int]) -> None:
        self.loss += float(functional.nll_loss(found, torch.tensor(next_ids), reduction="sum"))
        self.num_tokens += len(next_ids)
        for reference, expected in references.items():
            self.likeness[reference].add(expected, found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quantization", description=__doc__)
    parser.add_argument("--texts", type=int, default=60, help="documents of the demo model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(RANDOM_MODEL))
        generator = torch.Generator().manual_seed(0)
        noise = torch.randint(0, 32000, (4, CONTEXT), generator=generator)
        texts = documents(arguments.texts)
        prompts = [ids[:PROMPT_TOKENS] for ids in texts if len(ids) > PROMPT_TOKENS]
        pieces = noise.view(-1, PROMPT_TOKENS).tolist()
        figures = [
            *compare("demo model", demo_model(), texts, prompts),
            *compare("random weights", Path(folder), noise.tolist(), pieces, load_format="dummy"),
        ]
    report("quantization", figures)


def documents(count: int) -> list[list[int]]:
    """Ids of texts that the demo model could have been trained on, and was not."""
    corpus = Corpus(load_rules(), CORPUS_SEED)
    tokenizer = Tokenizer.from_file(str(demo_model() / "tokenizer.json"))
    texts = encode(tokenizer, [corpus.document() for _ in range(count)])
    return [ids[:CONTEXT] for ids, _ in texts if len(ids) > 1]


@torch.inference_mode()
def compare(
    name: str,
    folder: Path,
    texts: list[list[int]],
    prompts: list[list[int]],
    load_format: str = "auto",
) -> list[Figure]:
    readers = {
        format: Reader(folder, settings, load_format) for format, settings in FORMATS.items()
    }
    comparisons = {format: Comparison() for format in FORMATS}
    for token_ids in texts:
        predicted = {
            format: reader.logits(token_ids)[:-1].log_softmax(-1)
            for format, reader in readers.items()
        }
        references = {reference: predicted[reference] for reference in REFERENCES}
        for format, comparison in comparisons.items():
            comparison.add(predicted[format], references, token_ids[1:])
    answers = {format: reader.answers(prompts[:NUM_PROMPTS]) for format, reader in readers.items()}
    figures = []
    for format, found in comparisons.items():
        count = found.num_tokens
        perplexity = float(torch.tensor(found.loss / count).exp())
        figures.append(Figure(f"{name}, {format}: perplexity", perplexity, None, ""))
        for reference, likeness in found.likeness.items():
            if reference != format:
                what = f"{name}, {format} beside {reference}"
                divergence = likeness.divergence / count
                figures.append(Figure(f"{what}: divergence", divergence, None, "nats"))
                alike = 100 * likeness.num_alike / count
                figures.append(Figure(f"{what}: same best token", alike, None, "%"))
        figures += compare_answers(f"{name}, {format}", answers[format], answers["bfloat16"])
    return figures


def compare_answers(what: str, answers: list[list[int]], expected: list[list[int]]) -> list[Figure]:
    """How many are the same to their ends, and how far the two go together on average."""
    pairs = list(zip(answers, expected, strict=True))
    same = 100 * sum(ours == theirs for ours, theirs in pairs) / len(pairs)
    together = sum(common_length(*pair) for pair in pairs) / len(pairs)
    return [
        Figure(f"{what}: greedy answers same as bfloat16's", same, None, "%"),
        Figure(f"{what}: mean common beginning", together, None, "tokens"),
    ]


def common_length(ours: list[int], theirs: list[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


if __name__ == "__main__":
    main()
