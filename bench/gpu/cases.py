"""What is measured on a GPU: shapes of models, how much of each, and a figure that comes of it."""

from dataclasses import dataclass

from bench.peers.models import SHAPES, Shape

GPU_SHAPES = {
    "tiny": SHAPES["tiny"],
    "0.6B": SHAPES["m1"],
    "8B": Shape("qwen3", 4096, 12288, 36, 32, 8, 128, 151_936, 40_960, 1e6, 1e-6, 0, False),
    "32B": Shape("qwen3", 5120, 25600, 64, 64, 8, 128, 151_936, 40_960, 1e6, 1e-6, 0, False),
}
TOKEN = 300  # of made prompts, which say nothing


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each is measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    prompt: int
    chats: int
    chat: tuple[int, int]  # tokens in and out
    late_prompt: int


FULL = Sizes((1, 8, 32, 128, 256), (512, 4096, 32_768), 64, 8192, 32, (512, 128), 2048)
QUICK = Sizes((1, 4), (64, 3000), 4, 128, 4, (32, 8), 100)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `floor` is the share of what the device allows that it reaches."""

    shape: str
    case: str
    value: float | None  # None: it did not fit, or could not be measured
    unit: str
    floor: float | None = None
    note: str = ""
