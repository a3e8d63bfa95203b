"""Prompts of the model that counts, whose answers are known, and how one is asked for."""

import time

from bench.harness.socket_client import BenchSocket
from tests.helpers.tiny_model import oracle_word

PROMPT_WORDS = 32
DELTA = "response.output_text.delta"


async def ask(socket: BenchSocket, word: int, num_tokens: int) -> float:
    """Begin an answer in a session of its own; when it was asked for (`time.monotonic()`)."""
    session = await socket.new_session()
    started = time.monotonic()
    await socket.ask(session, prompt_of(word), temperature=0, max_output_tokens=num_tokens)
    return started


def prompt_of(word: int, num_words: int = PROMPT_WORDS) -> str:
    """A prompt that ends in that word of the model, so that its answer is known."""
    return "".join(oracle_word(16_000 - n % 6000) for n in range(num_words - 1)) + oracle_word(word)
