"""`choose_tokens` where memory is short. What it chooses: test_sampling_reference.py."""

import subprocess
import sys

from tests.helpers.built_kernels import needs_kernels

pytestmark = needs_kernels


def test_without_memory_for_a_choice_it_is_an_error_and_the_next_one_is_made() -> None:
    """In a process of its own, which has room for the logits and not for their weights."""
    program = """
import resource, torch
from engine.core.ops import library as ops

VOCAB = 1 << 21
logits = torch.zeros(4, VOCAB)
logits[:, 5] = 99
numbers = torch.ones(4, 4, dtype=torch.float64)
numbers[1], numbers[3] = 0, 0.5
temperatures, min_p, top_p, uniforms = numbers
top_k, tokens = torch.full((4,), 3), torch.full((4,), -2)
op = ops.choose("cpu").choose_tokens

def choose(logits):
    op(logits, temperatures, min_p, top_p, top_k, uniforms, tokens)
    return tokens.tolist()

torch.set_num_threads(2)
choose(logits[:, :9])  # starts the threads
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
tokens.fill_(-2)
try:
    choose(logits)
except MemoryError as error:
    print(error)
assert tokens.tolist() == [-2] * 4
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert choose(logits) == [5] * 4
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bad_alloc" in done.stdout
