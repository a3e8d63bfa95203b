"""Measures the demo model: `python -m bench.demo_model.evaluate`, and prints what it finds.

Long stories from 100 seeds with the server's default sampling, questions in words that the
generator does not use, plain beginnings without a chat, and texts that the tokenizer must give back
unchanged. Weights are computed in float32, as the engine does on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.demo_model.corpus import Corpus
from bench.demo_model.generator.grammar import load_rules
from bench.demo_model.questions import LONG_PROMPTS, QUESTIONS, RAW_PROMPTS, ROUND_TRIPS
from bench.demo_model.readability import Language, Reading, read

TEMPERATURE, TOP_P = 0.7, 0.95
MIN_TOKENS = 1500
LANGUAGE_DOCUMENTS = 20_000
HELD_OUT_SEED = 10**9  # no training run begins near it


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.demo_model.evaluate")
    parser.add_argument("--model", type=Path, default=Path("engine/demo"))
    parser.add_argument("--seeds", type=int, default=100, help="long stories")
    parser.add_argument("--batch", type=int, default=25, help="stories generated together")
    parser.add_argument("--max-tokens", type=int, default=4000, help="of one long story")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="long stories to print in full")
    parser.add_argument("--json", type=Path, help="also save every figure here")
    return parser.parse_args()


class Writer:
    """The model under test, asked in batches."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def chat_prompt(self, *turns: str) -> str:
        """User, assistant, user, ... as the template renders them."""
        roles = ["user", "assistant"] * len(turns)
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, turns, strict=False)
        ]
        rendered: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return rendered

    def write(self, prompts: list[str], max_tokens: int, seed: int) -> list[tuple[str, int, bool]]:
        """For each prompt: the text, its number of tokens, and whether the model ended it."""
        torch.manual_seed(seed)
        inputs = self.tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False
        )
        with torch.inference_mode():
            ids = self.model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                max_new_tokens=max_tokens,
                do_sample=True,
                temperature=TEMPERATURE,
                top_p=TOP_P,
                top_k=0,
            )
        answers = []
        ends = set(self.model.generation_config.eos_token_id)
        for row in ids[:, inputs.input_ids.shape[1] :].tolist():
            length = next((index for index, token in enumerate(row) if token in ends), len(row))
            text = self.tokenizer.decode(row[:length])
            answers.append((text, length, length < len(row)))
        return answers


def long_stories(writer: Writer, language: Language, args: argparse.Namespace) -> dict[str, Any]:
    """The acceptance: readable for at least 1,500 tokens in 95 of 100 seeds."""
    readings: list[Reading] = []
    passed, reasons, shown = 0, [], 0
    for first in range(0, args.seeds, args.batch):
        seeds = range(first, min(first + args.batch, args.seeds))
        prompts = [writer.chat_prompt(LONG_PROMPTS[seed % len(LONG_PROMPTS)]) for seed in seeds]
        stories = writer.write(prompts, args.max_tokens, seed=first)
        for seed, (text, num_tokens, finished) in zip(seeds, stories, strict=True):
            reading = read(text, num_tokens, finished, language)
            fails = reading.fails() + (["length"] if num_tokens < MIN_TOKENS else [])
            readings.append(reading)
            passed += not fails
            if fails:
                reasons.append(f"seed {seed}: {', '.join(fails)} ({num_tokens} tokens)")
            if shown < args.show:
                shown += 1
                print(f"--- {LONG_PROMPTS[seed % len(LONG_PROMPTS)]}\n\n{text}\n")
        print(f"long stories: {passed} of {len(readings)} pass", flush=True)
    for reason in reasons:
        print("  " + reason)
    print_readings("model", readings)
    return {"passed": passed, "of": len(readings), "readings": [asdict(r) for r in readings]}


def own_stories(corpus: Corpus, language: Language) -> list[Reading]:
    """The same figures for stories of the generator that nobody trained on."""
    stories = ["\n\n".join(corpus.talker.storyteller.long()) for _ in range(40)]
    return [read(story, 0, True, language) for story in stories]


def print_readings(label: str, readings: list[Reading]) -> None:
    print(
        f"{label:>9}: tokens {median(r.num_tokens for r in readings):.0f} (median), "
        f"sentences of known words {mean(r.known_sentences for r in readings):.2%}, "
        f"strange triples {mean(r.strange_triples for r in readings):.2%}, "
        f"most repeated 12 words {mean(r.most_repeated for r in readings):.2f}, "
        f"most copied paragraph {mean(r.most_copied for r in readings):.2f}, "
        f"whole paragraphs {mean(r.whole_paragraphs for r in readings):.2%}, "
        f"wrong pronouns {mean(r.wrong_pronouns for r in readings):.2%}, "
        f"chapters in order {mean(r.chapters_in_order for r in readings):.0%}"
    )


def questions(writer: Writer) -> dict[str, Any]:
    """Each question has words that a fitting answer contains, one of them at least."""
    prompts = [writer.chat_prompt(*turns) for turns, _ in QUESTIONS]
    answers = writer.write(prompts, 300, seed=7)
    fitting = 0
    for (turns, expected), (text, _, finished) in zip(QUESTIONS, answers, strict=True):
        fits = finished and any(word.lower() in text.lower() for word in expected)
        fitting += fits
        if not fits:
            print(f"  {turns[-1]!r} → {text[:160]!r}")
    print(f"questions: {fitting} of {len(QUESTIONS)} answers fit")
    return {"fitting": fitting, "of": len(QUESTIONS)}


def raw_prompts(writer: Writer, language: Language) -> dict[str, Any]:
    """Plain beginnings go on as readable prose of the village."""
    texts = writer.write(RAW_PROMPTS, 200, seed=11)
    readings = [read(text, count, finished, language) for text, count, finished in texts]
    readable = sum(r.known_sentences >= 0.95 and r.strange_triples <= 0.06 for r in readings)
    for prompt, (text, _, _) in list(zip(RAW_PROMPTS, texts, strict=True))[:3]:
        print(f"  {prompt}|{text[:200]!r}")
    print(f"plain beginnings: {readable} of {len(RAW_PROMPTS)} go on readably")
    return {"readable": readable, "of": len(RAW_PROMPTS)}


def round_trips(writer: Writer) -> dict[str, Any]:
    """Any text comes back from its ids unchanged."""
    kept = sum(
        writer.tokenizer.decode(writer.tokenizer(text, add_special_tokens=False).input_ids) == text
        for text in ROUND_TRIPS
    )
    print(f"round trips: {kept} of {len(ROUND_TRIPS)} texts unchanged")
    return {"kept": kept, "of": len(ROUND_TRIPS)}


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    started = time.monotonic()
    writer = Writer(args.model)
    corpus = Corpus(load_rules(), HELD_OUT_SEED)
    language = Language(corpus.document().text for _ in range(LANGUAGE_DOCUMENTS))
    figures = {
        "round_trips": round_trips(writer),
        "questions": questions(writer),
        "raw_prompts": raw_prompts(writer, language),
        "long_stories": long_stories(writer, language, args),
    }
    print_readings("generator", own_stories(corpus, language))
    print(f"{(time.monotonic() - started) / 60:.1f} min")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
