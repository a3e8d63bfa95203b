"""Each state of the pages in real Chromium looks as its reference picture does.

`--renew-looks` takes the references anew, for changes that are meant. Look at them before they are
committed.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.looks.admin_states import ADMIN_STATES
from tests.end_to_end.looks.chat_states import CHAT_STATES
from tests.end_to_end.looks.manage.states import MANAGE_STATES
from tests.end_to_end.looks.pictures import (
    MAX_DIFFERENT,
    compressed,
    difference,
    num_different,
    read,
    reference_of,
)
from tests.end_to_end.looks.stage import staged
from tests.end_to_end.looks.tool_states import TOOL_STATES
from tests.end_to_end.site.harness import Server

STATES = CHAT_STATES | TOOL_STATES | ADMIN_STATES | MANAGE_STATES
LOOKS = [
    look.strip()
    for look in """
    empty light wide, empty dark phone, streaming light wide, streaming dark phone,
    thinking dark wide, waiting light phone, waiting dark wide, edited-waiting light phone,
    stopped light phone,
    failed dark wide, markdown light wide, markdown dark phone, code dark wide, code light phone,
    formula light wide, right-to-left light phone, right-to-left dark wide, long-words light phone,
    long-words light wide, branches dark phone, scrolled-up light phone, message-menu dark phone,
    details light wide, again dark wide, settings dark wide, all-settings light phone,
    share light wide, share dark phone, chat-menu light wide, account-menu dark phone,
    shortcuts light wide, palette dark wide, palette light phone, edit light wide, edit dark phone,
    chats light phone, chats dark wide, rename light wide, deleted dark phone, deleted light wide,
    disconnected light wide, closed-by-an-admin dark phone, signed-out light phone,
    login-link dark wide, shared-page light wide, admin-sign-in dark phone, admin-live light wide,
    admin-live dark phone, admin-figures light wide, admin-figures dark wide,
    admin-figures dark phone, admin-figures-table light wide, admin-server light wide,
    admin-server dark phone, admin-found dark wide, admin-away light wide, admin-away dark phone,
    admin-drawer light wide, admin-drawer dark phone, admin-evict dark wide,
    admin-lost light wide, thought-growing light wide, thought-growing dark phone,
    thought dark wide, thought light phone, call-written light phone, calls light wide,
    calls dark wide, calls dark phone, consent light wide, consent dark wide, consent light phone,
    consent dark phone, outcomes dark wide, outcomes light phone, chat-tools light wide,
    chat-tools dark phone, admin-sessions light wide, admin-users light wide,
    admin-users dark phone, admin-user light wide, admin-user dark phone, admin-groups light wide,
    admin-groups dark phone, admin-group light wide, admin-group dark phone, admin-audit light wide,
    admin-audit dark phone, admin-share-links light wide, admin-share-links dark phone,
    admin-notice light wide, admin-notice dark phone, admin-settings light wide,
    admin-settings dark phone, admin-user-refused light wide, admin-user-refused dark phone,
    hostile-users dark wide, hostile-users light phone, hostile-audit light phone,
    hostile-session dark wide, admin-engines light wide, admin-engines dark phone,
    admin-older dark phone, admin-choosing light wide, admin-choosing dark phone
""".split(",")
]
FONTS = {  # family: the package of Debian that has it
    "Liberation Sans": "fonts-liberation",
    "DejaVu Sans": "fonts-dejavu-core",
    "DejaVu Sans Mono": "fonts-dejavu-core",
}
# Ids, links, moments; what is made up, such as what docs/admin.md shows, varies nowhere.
VARYING = ".pairs code, .drawer code, .link-row input, time"
STYLE = """
    :root { --text: "Liberation Sans", "DejaVu Sans"; --mono: "DejaVu Sans Mono"; }
    body { font-family: "Liberation Sans", "DejaVu Sans" !important; }
    * { caret-color: transparent !important; }
    *, ::before, ::after { animation: none !important; transition: none !important; }
"""
ADD_STYLE = f"""addEventListener("readystatechange", () => {{
    const style = document.createElement("style");
    style.textContent = `{STYLE}`;
    if (document.readyState === "interactive") document.head.append(style);
}}, true);"""


def missing_font() -> str | None:
    """A line on what to install, if the machine has not all fonts of the references."""
    lister = shutil.which("fc-list")
    if lister is None:
        return "fontconfig is not installed (apt install fontconfig)"
    listed = subprocess.run([lister, ":", "family"], capture_output=True, text=True).stdout
    families = {name.strip() for line in listed.splitlines() for name in line.split(",")}
    for family, package in FONTS.items():
        if family not in families:
            return f"the references are set in {family}, not installed (apt install {package})"
    return None


MISSING_FONT = missing_font()


async def picture(page: Page, *, is_made_up: bool) -> bytes:
    await page.evaluate("document.fonts.ready.then(() => {})")
    masks = [] if is_made_up else [page.locator(VARYING)]
    return await page.screenshot(mask=masks, mask_color="#8a9a9c", animations="disabled")


@pytest.mark.slow
# In other fonts every picture would differ, and say nothing of the page.
@pytest.mark.skipif(MISSING_FONT is not None, reason=str(MISSING_FONT))
@pytest.mark.parametrize("look", LOOKS)
async def test_a_state_of_a_page_looks_as_its_reference_does(
    browser: Browser, server: Server, look: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name, scheme, width = look.split()
    reference = reference_of(look)
    async with staged(browser, server, width, color_scheme=scheme) as stage:
        await stage.page.add_init_script(ADD_STYLE)
        await STATES[name](stage)
        taken = await picture(stage.page, is_made_up=name in MANAGE_STATES)
    renews = request.config.getoption("--renew-looks")
    if renews and not reference.exists():
        reference.write_bytes(compressed(taken))
    now, before = read(taken), read(reference.read_bytes())
    count = num_different(now, before)
    if count > MAX_DIFFERENT and renews:
        reference.write_bytes(compressed(taken))
    elif count > MAX_DIFFERENT:
        (tmp_path / "taken.png").write_bytes(taken)
        (tmp_path / "difference.png").write_bytes(difference(now, before))
        pytest.fail(f"{count} pixels differ from {reference.name}: see {tmp_path}/difference.png")
