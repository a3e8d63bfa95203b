"""`python -m tests.fuzz TARGET --minutes 20 --seed 1`: attack, until something is found."""

from __future__ import annotations

import argparse
import importlib
import random
from pathlib import Path

TARGETS = sorted(
    path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.glob("fuzz_*.py")
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    target = importlib.import_module(f"tests.fuzz.fuzz_{given.target}")
    print(f"seed {given.seed}", flush=True)
    print(target.run(given.minutes * 60, given.seed))


if __name__ == "__main__":
    main()
