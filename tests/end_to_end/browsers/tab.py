"""A tab of a browser as a person uses it: by mouse and keyboard, and by what is seen.

Playwright drives builds of Firefox and WebKit of its own. These are the browsers that people have,
and so they are driven by what those speak: the W3C's WebDriver, classic and BiDi. What differs
between the two stands in `firefox.py` and `webkit.py`, a hundred lines each: less than a library
and a driver program for each browser would be to install.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from tests.helpers.patience import PATIENCE

KEYS = {  # as WebDriver names them
    "Backspace": "\ue003",
    "Control": "\ue009",
    "ArrowDown": "\ue015",
    "Enter": "\ue007",
    "Escape": "\ue00c",
}
# The visible elements to press or to write in that have this name, in the order of the page.
NAMED = """(name) => [...document.querySelectorAll(
    "button, a, input, textarea, select, [role=menuitem], [role=option]")]
    .filter((it) => (it.ariaLabel ?? it.textContent).trim() === name)
    .filter((it) => it.checkVisibility({ visibilityProperty: true }))"""
# The middle of one of them, once it stands still in view.
PLACE = f"""async (name, index) => {{
    const element = ({NAMED})(name).at(index);
    if (!element) return null;
    element.scrollIntoView({{ block: "nearest" }});
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
    let before = null;
    for (;;) {{
        await frame();
        const {{ x, y, width, height }} = element.getBoundingClientRect();
        const place = [Math.round(x + width / 2), Math.round(y + height / 2)];
        if (String(place) === String(before)) return place;
        before = place;
    }}
}}"""


class Tab(ABC):
    """Each wait is for a condition, and ends with an error after `PATIENCE` seconds."""

    @abstractmethod
    async def open(self, url: str) -> None: ...

    @abstractmethod
    async def reload(self) -> None: ...

    @abstractmethod
    async def run(self, function: str, *arguments: Any) -> Any:
        """What this function of JavaScript, perhaps an asynchronous one, returns."""

    @abstractmethod
    async def act(self, *sources: dict[str, Any]) -> None:
        """Perform what input sources do, as WebDriver describes it."""

    async def until(self, function: str, *arguments: Any) -> Any:
        """Ask again and again until it returns something true."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not (found := await self.run(function, *arguments)):
                    pass
        except TimeoutError:
            text = await self.run("() => document.body.innerText")
            raise AssertionError(f"never: {function} {arguments}; the page says:\n{text}") from None
        return found

    async def click(self, name: str, index: int = -1) -> None:
        """The last one with this name, or another one."""
        x, y = await self.until(PLACE, name, index)
        await self._mouse(
            x, y, [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        )

    async def hover(self, selector: str) -> None:
        """The middle of the first element that this selects."""
        x, y, width, height = await self.run(
            """(selector) => {
                const box = document.querySelector(selector).getBoundingClientRect();
                return [box.x, box.y, box.width, box.height];
            }""",
            selector,
        )
        await self._mouse(round(x + width / 2), round(y + height / 2), [])

    async def _mouse(self, x: int, y: int, then: list[dict[str, Any]]) -> None:
        move = {"type": "pointerMove", "x": x, "y": y, "duration": 0}
        kind = {"pointerType": "mouse"}
        mouse = {"type": "pointer", "id": "mouse", "parameters": kind, "actions": [move, *then]}
        await self.act(mouse)

    async def press(self, keys: str) -> None:
        """One key, or some at once, as in `Control+k`."""
        held = [KEYS.get(key, key) for key in keys.split("+")]
        down = [{"type": "keyDown", "value": key} for key in held]
        up = [{"type": "keyUp", "value": key} for key in reversed(held)]
        await self.act({"type": "key", "id": "keyboard", "actions": down + up})

    async def write(self, text: str) -> None:
        """Into what has the focus."""
        strokes = [
            {"type": kind, "value": character}
            for character in text
            for kind in ("keyDown", "keyUp")
        ]
        await self.act({"type": "key", "id": "keyboard", "actions": strokes})

    async def fill(self, name: str, text: str) -> None:
        await self.click(name)
        await self.press("Control+a")
        await self.write(text)

    async def shows(self, text: str) -> None:
        """Wait until the page does."""
        await self.until("(text) => document.body.innerText.includes(text)", text)

    async def hides(self, text: str) -> None:
        await self.until("(text) => !document.body.innerText.includes(text)", text)

    async def has(self, name: str, count: int = 1) -> None:
        """Wait until there are so many with this name."""
        await self.until(f"(name, count) => ({NAMED})(name).length === count", name, count)
