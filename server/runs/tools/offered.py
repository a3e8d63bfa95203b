"""Which tools of an answer the server runs, as its settings say, and what was called before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.generation.sampling import offered_tools
from server.runs.tools.outcomes import NOT_SENT
from sessions.model.records import Message

MAX_ROUNDS = 16  # of calls, since the user's question
CHAIN_MESSAGES = 2 * MAX_ROUNDS + 2  # of a path: the rounds, the question, and one to see more


@dataclass(frozen=True, slots=True)
class RunTool:
    """A tool that the server runs, with its policy as it was when the answer began."""

    name: str
    server: str
    consent: str
    max_calls: int


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of one answer."""

    run_here: Mapping[str, RunTool]
    has_others: bool  # some are the client's

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Offered":
        tools = offered_tools(settings)
        mine = [tool for tool in tools if "server_label" in tool]
        found = {
            tool["name"]: RunTool(
                tool["name"],
                tool["server_label"],
                tool.get("consent", "always"),
                tool.get("max_calls", 1),
            )
            for tool in mine
        }
        return cls(found, len(mine) < len(tools))

    def is_ours(self, name: str) -> bool:
        """Whether the server answers a call of this name, if only that there is no such tool."""
        return name in self.run_here or (bool(self.run_here) and not self.has_others)


@dataclass(frozen=True, slots=True)
class Past:
    """What was called since the user's question, before this answer."""

    num_rounds: int
    num_calls: Counter[str]  # by server

    @classmethod
    def of(cls, path: Sequence[Message]) -> "Past":
        """`path` leads to what the answer answers, oldest first."""
        num_rounds, num_calls = 0, Counter[str]()
        for message in reversed(path):
            if message.role == "user":
                break
            if message.role != "assistant":
                continue
            num_rounds += 1
            for item in message.tool_outputs or ():
                if item.get("code") not in NOT_SENT:
                    num_calls[item["server_label"]] += 1
        return cls(num_rounds, num_calls)


def runs_tools(settings: Mapping[str, Any]) -> bool:
    """Whether any tool of an answer is one that the server runs."""
    return any("server_label" in tool for tool in offered_tools(settings))
