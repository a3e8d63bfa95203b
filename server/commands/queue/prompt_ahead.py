"""`PromptAhead`: the prompt of the words that steer an answer, made while that answer ends.

A stop that closes the gate says at once what of the answer is kept. So history and words are read
and rendered while the engine lets the answer go and its end is stored. It is nothing but that
prompt: the next answer takes it if it has the same words, settings and messages.
"""

from dataclasses import replace

from server.commands.reply_target import ReplyTarget
from server.generation.prompts import Prompt, PromptBuilders
from server.protocol.errors import ApiError
from server.runs.run import Run
from server.runs.state import RunState
from sessions.background import start
from sessions.model.errors import SessionError
from sessions.model.records import Message
from sessions.store.messages import Messages


class PromptAhead:
    """Begins at once. `run` was stopped by this worker, and has called no tool."""

    def __init__(self, run: Run, text: str, prompts: PromptBuilders, messages: Messages) -> None:
        self._run, self._text, self._messages = run, text, messages
        self._settings = run.response["settings"]
        self._kept = run.final_text()
        answer = replace(
            run.message,
            text=self._kept,
            reasoning=run.final_reasoning(),
            order=run.final_order(),
            status="interrupted",
        )
        self._builder = prompts.of(self._settings["model"])
        self._before: list[Message] = []  # the answer, as they were when the prompt was begun
        self._prompt = start(self._build(answer))

    async def _build(self, answer: Message) -> Prompt:
        run, leaf = self._run, answer.parent_id

        async def read_path() -> list[Message]:
            self._before = await self._builder.path(run.uid, run.session_id, leaf)
            return self._before

        return await self._builder.build(
            run.uid,
            run.session_id,
            leaf,
            self._text,
            self._settings,
            before=[answer],
            read_path=read_path,
        )

    async def take(self, target: ReplyTarget, settings: dict[str, object]) -> Prompt | None:
        """The prompt, if that is what is asked now, and the answer was stored as it was here.

        It is to be used only if it `is_current`, too.
        """
        run = self._run
        is_plain = not (target.base or target.before or target.outputs)
        if not is_plain or (target.leaf, target.text) != (run.message.id, self._text):
            return None
        if _without_seed(settings) != _without_seed(self._settings):
            return None
        if run.state is not RunState.ENDED or run.final_text() != self._kept:
            return None
        try:
            return await self._prompt
        except (ApiError, SessionError):  # the answer itself finds it, and says so
            return None

    async def is_current(self) -> bool:
        """Whether its messages are stored as they were: what was deleted must not be in it."""
        run, ids = self._run, [*(each.id for each in self._before), self._run.message.id]
        try:
            stored = [each async for each, _ in self._messages.bodies(run.session_id, ids)]
        except SessionError:
            return False
        *before, answer = stored
        unplaced = [replace(each, sibling_ids=()) for each in self._before]  # as they are stored
        return (before, answer.text) == (unplaced, self._kept)


def _without_seed(settings: dict[str, object]) -> dict[str, object]:
    """What a prompt may depend on: a seed is drawn for each answer."""
    return {name: value for name, value in settings.items() if name != "seed"}
