"""Trains the demo model: `python -m bench.demo_model.train`, about an hour on two idle cores.

Everything it makes on the way lies in the work folder, outside the repository. It continues from
the last checkpoint there, so it may be stopped at any time. The learning rate is constant and only
falls in the last part, so a run can also be prolonged: give more `--steps` before the fall begins.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import MistralForCausalLM

from bench.demo_model.corpus import BEGINNINGS_KIND_TO_WEIGHT, Corpus, Packer, attention_mask
from bench.demo_model.generator.grammar import load_rules
from bench.demo_model.generator.stories import ORDINALS
from bench.demo_model.generator.world import BEINGS, PLACES, THINGS
from bench.demo_model.model import CONTEXT, WINDOW, export_model, new_model
from bench.demo_model.muon import Muon
from bench.demo_model.tokenizer import save_tokenizer, train_tokenizer

WARMUP_STEPS = 30
# First each step sees beginnings, short rows that start with a document; after that part of the run
# every other step does, since that is where a request decides what kind of answer follows.
BEGINNINGS_SHARE = 0.15
BEGINNING_ROWS, BEGINNING_LENGTH = 12, 192
ROWS, LENGTH = 4, 576
DECAY_SHARE = 0.5  # the last part of the run, in which the learning rate falls to nothing
MATRIX_RATE = 0.012
VECTOR_RATE = 0.002
EMBEDDING_BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
AVERAGE_SHARE = 0.02  # how much of the average of the weights one step replaces
# Who, where and which chapter can only be copied from far back. These few tokens drown in the noise
# of all the free choices between them; with more weight the model learns to copy them in time.
NAME_WEIGHT, PLACE_WEIGHT, PRONOUN_WEIGHT, ANSWER_START_WEIGHT = 5.0, 4.0, 2.0, 4.0
PARAGRAPH_START_WEIGHT = 3.0  # what comes next is decided in the first words of a paragraph
PARAGRAPH_START = 4  # tokens
PRONOUNS = ["he", "him", "his", "she", "her", "himself", "herself"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.demo_model.train", description=__doc__)
    default = Path(tempfile.gettempdir()) / "parley_demo_model"
    parser.add_argument("--work", type=Path, default=default, help="checkpoints and tokenizer")
    parser.add_argument("--export", type=Path, default=Path("engine/demo"), help="final folder")
    parser.add_argument("--steps", type=int, default=5200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument(
        "--export-now",
        action="store_true",
        help="only write the averaged weights of the last checkpoint, without training",
    )
    parser.add_argument("--no-compile", action="store_true", help="run without a C++ compiler")
    return parser.parse_args()


def rate_at(step: int, steps: int) -> float:
    """The share of the full learning rate: up, level, down."""
    decay_steps = max(1, round(steps * DECAY_SHARE))
    return max(0.0, min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / decay_steps))


def token_weights(tokenizer: Tokenizer) -> Tensor:
    """The weight of each token in the loss, [vocab_size]."""
    weights = torch.ones(tokenizer.get_vocab_size())
    names = [word for being in BEINGS for word in being.name.split()]
    places = [place.the.split()[-1] for place in PLACES.values()]
    things = [thing.name.split()[-1] for thing in THINGS]
    counts = [*ORDINALS, *"0123456789"]
    for words, weight in (
        (PRONOUNS, PRONOUN_WEIGHT),
        ([*places, *things], PLACE_WEIGHT),
        ([*names, *counts], NAME_WEIGHT),
    ):
        for word in words:
            for form in (word, " " + word, word.capitalize(), " " + word.capitalize()):
                ids = tokenizer.encode(form).ids
                if len(ids) == 1:
                    weights[ids[0]] = weight
    return weights


class Trainer:
    """One model with its optimizers and the place in its run."""

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer) -> None:
        self.args = args
        self.token_weight = token_weights(tokenizer)
        self.blank_line = tokenizer.encode("\n\n").ids[-1]
        self.model = new_model(tokenizer.get_vocab_size(), args.seed)
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in self.model.named_parameters():
            is_matrix = parameter.ndim == 2 and "embed" not in name
            (matrices if is_matrix else others).append(parameter)
        self.muon = Muon(matrices, MATRIX_RATE)
        self.adam = torch.optim.AdamW(
            others, lr=VECTOR_RATE, betas=EMBEDDING_BETAS, weight_decay=0.0
        )
        # Before the rate has fallen, the running average of the weights is the better model.
        self.average = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.step = 0

    def restore(self) -> None:
        """Continue from the newest checkpoint of the work folder, if there is one."""
        path = self.args.work / "last.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.load_state(state["muon"])
        self.average = state["average"]
        self.step = state["step"]
        print(f"continuing after step {self.step}", flush=True)

    def save(self, name: str = "last.pt") -> None:
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.state(),
            "average": self.average,
            "step": self.step,
        }
        partial = self.args.work / "partial.pt"
        torch.save(state, partial)
        partial.replace(self.args.work / name)

    @torch.no_grad()
    def update_average(self) -> None:
        for mean, parameter in zip(self.average, self.model.parameters(), strict=True):
            mean.lerp_(parameter, max(AVERAGE_SHARE, 1 / (self.step + 1)))

    @torch.no_grad()
    def use_average(self) -> None:
        for mean, parameter in zip(self.average, self.model.parameters(), strict=True):
            parameter.copy_(mean)

    def loss(self, forward: Callable[..., Any], batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Weighted mean over what is learned; the weights make up for how rare a token is."""
        ids, learned, document = batch
        mask = attention_mask(document[:, :-1], WINDOW)
        bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        logits = forward(input_ids=ids[:, :-1], attention_mask=bias, use_cache=False).logits
        targets = ids[:, 1:]
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        keep = (learned[:, 1:] == 1) & (document[:, 1:] == document[:, :-1])
        weight = self.token_weight[targets]
        answer_starts = learned[:, :-1] == 0
        weight = torch.where(answer_starts, weight.clamp(min=ANSWER_START_WEIGHT), weight)
        after_blank = functional.max_pool1d(
            functional.pad((ids[:, :-1] == self.blank_line).float(), (PARAGRAPH_START - 1, 0)),
            kernel_size=PARAGRAPH_START,
            stride=1,
        )
        weight = torch.where(after_blank > 0, weight.clamp(min=PARAGRAPH_START_WEIGHT), weight)
        weight = weight * keep
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def run(self, beginnings: Packer, whole: Packer) -> None:
        args = self.args
        forward = self.model if args.no_compile else torch.compile(self.model)
        decay_start = args.steps - round(args.steps * DECAY_SHARE)
        started, trained = time.monotonic(), 0
        while self.step < args.steps:
            share = rate_at(self.step, args.steps)
            self.muon.learning_rate = MATRIX_RATE * share
            self.adam.param_groups[0]["lr"] = VECTOR_RATE * share
            early = self.step < args.steps * BEGINNINGS_SHARE
            is_beginning = early or self.step % 2 == 0
            batch = beginnings.batch(BEGINNING_ROWS) if is_beginning else whole.batch(ROWS)
            loss = self.loss(forward, batch)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
            self.muon.step()
            self.adam.step()
            self.model.zero_grad()
            self.update_average()
            self.step += 1
            trained += batch[0].numel()
            if self.step % 10 == 0 or self.step == args.steps:
                seconds = time.monotonic() - started
                print(
                    f"step {self.step}/{args.steps} loss {loss.item():.3f} rate {share:.2f} "
                    f"{trained / seconds:.0f} tokens/s {seconds / 60:.1f} min",
                    flush=True,
                )
            if self.step % args.save_every == 0:
                self.save()
            if self.step == decay_start:
                self.save("before_decay.pt")
        self.save()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    rules = load_rules()
    tokenizer_path = args.work / "tokenizer.json"
    if not tokenizer_path.exists():
        save_tokenizer(train_tokenizer(Corpus(rules, args.seed)), args.work, CONTEXT)
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    trainer = Trainer(args, tokenizer)
    trainer.restore()
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{parameters:,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    if args.export_now:
        trainer.use_average()
        export(trainer.model, args)
        return
    # Another seed after each restart: a resumed run meets new stories, not the first ones again.
    seed = args.seed + 1 + trainer.step
    openings = Corpus(rules, seed, BEGINNINGS_KIND_TO_WEIGHT)
    beginnings = Packer(openings, tokenizer, BEGINNING_LENGTH, from_start=True)
    trainer.run(beginnings, Packer(Corpus(rules, seed), tokenizer, LENGTH))
    export(trainer.model, args)


def export(model: MistralForCausalLM, args: argparse.Namespace) -> None:
    """Write the folder that the engine loads."""
    save_tokenizer(Tokenizer.from_file(str(args.work / "tokenizer.json")), args.export, CONTEXT)
    export_model(model, args.export)
    print(f"wrote {args.export}", flush=True)


if __name__ == "__main__":
    main()
