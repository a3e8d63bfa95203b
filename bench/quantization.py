"""`python -m bench.quantization`: what `--quantize int8` and `--kv-cache-dtype int8` change.

The demo model reads documents of its own generator that it was not trained on, and a model with
random weights at real dimensions reads random tokens. Both are read by the fused decoder, token by
token of the vocabulary: with float32 weights (the truth), with bfloat16 and with int8, and each of
these with keys and values in 8 bits.
"""

import argparse
import dataclasses
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
from bench.demo_model.grammar import load_rules
from bench.report import Figure, report
from engine import demo_model, ops
from engine.batch import build_batch
from engine.config import EngineConfig
from engine.loader import load_model
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.sequence import ScheduledSequence, Sequence

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8, int8 cache": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}
CONTEXT = 512
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
            num_blocks=CONTEXT // 16,
            batch_invariant=False,
            **settings,
        )
        self._runner = ModelRunner(load_model(config, ops.choose("cpu")), config)

    def logits(self, token_ids: list[int]) -> Tensor:
        """Behind each token: [num_tokens, vocab]."""
        sequence = Sequence("", "reader", token_ids, SamplingParams())
        sequence.block_table = array("i", range(CONTEXT // 16))
        batch = build_batch([ScheduledSequence(sequence, len(token_ids))], 16, torch.device("cpu"))
        rows = torch.arange(len(token_ids))
        batch = dataclasses.replace(batch, logits_rows=rows, num_sampled=len(token_ids))
        return self._runner.forward(batch)


@dataclasses.dataclass(slots=True)
class Comparison:
    """One format beside float32, over all tokens read."""

    loss: float = 0.0  # of the texts' own next tokens, in nats
    divergence: float = 0.0  # Kullback-Leibler, from float32's distribution, in nats
    num_alike: int = 0  # positions whose best token is float32's
    num_tokens: int = 0

    def add(self, truth: Tensor, logits: Tensor, next_ids: list[int]) -> None:
        expected, found = truth.log_softmax(-1), logits.log_softmax(-1)
        self.loss += float(functional.nll_loss(found, torch.tensor(next_ids), reduction="sum"))
        self.divergence += float((expected.exp() * (expected - found)).sum())
        self.num_alike += int((expected.argmax(-1) == found.argmax(-1)).sum())
        self.num_tokens += len(next_ids)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quantization", description=__doc__)
    parser.add_argument("--texts", type=int, default=60, help="documents of the demo model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(RANDOM_MODEL))
        generator = torch.Generator().manual_seed(0)
        noise = torch.randint(0, 32000, (4, CONTEXT), generator=generator).tolist()
        figures = [
            *compare("demo model", demo_model(), documents(arguments.texts)),
            *compare("random weights", Path(folder), noise, load_format="dummy"),
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
    name: str, folder: Path, texts: list[list[int]], load_format: str = "auto"
) -> list[Figure]:
    readers = {
        format: Reader(folder, settings, load_format) for format, settings in FORMATS.items()
    }
    comparisons = {format: Comparison() for format in FORMATS}
    for token_ids in texts:
        truth = readers["float32"].logits(token_ids)[:-1]
        for format, reader in readers.items():
            comparisons[format].add(truth, reader.logits(token_ids)[:-1], token_ids[1:])
    figures = []
    for format, found in comparisons.items():
        count = found.num_tokens
        perplexity = float(torch.tensor(found.loss / count).exp())
        figures.append(Figure(f"{name}, {format}: perplexity", perplexity, None, ""))
        if format != "float32":
            divergence = found.divergence / count
            figures.append(Figure(f"{name}, {format}: divergence", divergence, None, "nats"))
            alike = 100 * found.num_alike / count
            figures.append(Figure(f"{name}, {format}: same best token", alike, None, "%"))
    return figures


if __name__ == "__main__":
    main()
