"""`parley chat` as a user types in it."""

from tests.end_to_end.clients.terminal import terminal
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_word

CTRL_C, CTRL_D = "\x03", "\x04"


async def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(server: Server) -> None:
    async with terminal(server, "chat") as screen:
        await screen.shows("›")
        screen.press(oracle_word(0) + "\n")
        await screen.shows(oracle_word(5))
        screen.press(CTRL_C)
        await screen.shows("client_cancelled · ")
        await screen.shows("›")
        screen.press(CTRL_D)


async def test_ctrl_c_at_the_prompt_drops_the_line_and_asks_again(server: Server) -> None:
    async with terminal(server, "chat") as screen:
        await screen.shows("›")
        screen.press("half a sentence" + CTRL_C)
        await screen.shows("Ctrl-D leaves[^›]*›")
        screen.press(oracle_word(0) + "\n")
        await screen.shows(oracle_word(1))
        screen.press(CTRL_C)
        await screen.shows("client_cancelled · ")
        await screen.shows("›")
        screen.press(CTRL_D)
