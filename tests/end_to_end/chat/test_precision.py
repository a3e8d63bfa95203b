"""A server whose weights are kept in another precision than the checkpoint's.

In every run, tests/engine/core/runner/test_float16.py asks the engine the same.
"""

from pathlib import Path

import pytest

from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word


@pytest.mark.slow
async def test_a_server_with_float16_weights_starts_and_answers(
    oracle_model: Path, tmp_path: Path
) -> None:
    server = Server(tmp_path / "data", oracle_model, None, **TESTING, PARLEY_DTYPE="float16")
    try:
        server.start()
        async with Client(server) as client:
            session = await client.new_session()
            settings = {"temperature": 0, "max_output_tokens": 30}
            response = await client.ask(session, oracle_word(7), settings=settings)
            assert (await client.done(response)).final == oracle_answer(7, 30)
        assert "as float16 on cpu" in server.log(None)
    finally:
        server.close()
