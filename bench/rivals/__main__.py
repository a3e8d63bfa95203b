"""`python -m bench.rivals`: what users of chat servers feel, measured as it was on others.

The model has about 100 million weights and counts, so each text can be checked. The clients are
websockets, and headless Chromium for the reload. "Direct" is the same engine without a server, in
the same run and taking turns. Each target is what docs/reliability.md says that Parley must show.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench.harness.report import report
from bench.harness.servers import running_server
from bench.rivals.cuts import cut_figures, death_figures, reload_figures
from bench.rivals.idle import idle_figures
from bench.rivals.load import load_figures
from bench.rivals.stops import stop_figures
from tests.helpers.tiny_model import build_oracle_model

NUM_LAYERS, MLP_WIDTH = 40, 2816  # with 17,000 words of width 256: 96 million weights


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rivals", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side under load")
    parser.add_argument("--tokens", type=int, default=96, help="length of each answer under load")
    parser.add_argument("--stops", type=int, default=100, help="stops at random moments")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder_of_model = Path(folder) / "model"
        model = build_oracle_model(folder_of_model, num_layers=NUM_LAYERS, mlp_width=MLP_WIDTH)
        with running_server(model) as server:
            figures = idle_figures(server)
            figures += asyncio.run(stop_figures(server, arguments.stops))
            figures += asyncio.run(cut_figures(server))
            figures += load_figures(server, model, arguments.rounds, arguments.tokens)
            figures += asyncio.run(reload_figures(server))
        with running_server(model, PARLEY_WORKERS="2") as server:
            figures += asyncio.run(death_figures(server))
    report("rivals", figures)


if __name__ == "__main__":
    main()
