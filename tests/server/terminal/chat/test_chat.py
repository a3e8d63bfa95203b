"""`Chat`: what `parley chat` tells the server of itself."""

import asyncio
import json
from contextlib import suppress

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from server.terminal.chat.chat import Chat
from sessions.background import start
from tests.helpers.patience import PATIENCE


async def test_a_chat_in_which_nobody_asks_yet_says_that_it_is_there_on_each_connection() -> None:
    heard = asyncio.Queue[str]()

    async def hear(socket: ServerConnection) -> None:
        await socket.send('{"type": "connection.ready"}')
        heard.put_nowait(json.loads(await socket.recv())["type"])
        await socket.close(1012)

    async with serve(hear, "127.0.0.1", 0, subprotocols=[Subprotocol("chat.v1")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        chat = Chat(
            lambda: (f"http://127.0.0.1:{port}", "token"),
            None,
            on_change=lambda: None,
            on_note=lambda _: None,
            on_refused=lambda *_: None,
        )
        talk = start(chat.run())
        async with asyncio.timeout(PATIENCE):
            assert [await heard.get(), await heard.get()] == ["ping", "ping"]
        talk.cancel()
        with suppress(asyncio.CancelledError):
            await talk
