"""What `/login` shows: words of users escaped, one form, and a script only where it is used."""

from __future__ import annotations

import re

from server.access.identities import User
from server.api.login.page import login_page, refusal_page
from server.protocol.errors import ApiError

EVIL = """"><script>alert(1)</script>'&"""


def test_names_ids_and_codes_are_text_and_never_markup() -> None:
    user, here = User("usr_1" + EVIL, "Ada" + EVIL), User("usr_2" + EVIL, "Bob" + EVIL)
    for page in (
        login_page(EVIL, user, None),
        login_page(EVIL, user, user),
        login_page(EVIL, user, here),
        refusal_page(ApiError("token_invalid", EVIL)),
    ):
        assert "alert(1)</" not in page
        assert len(re.findall("<script", page)) == 1  # the theme's own


def test_the_page_has_one_form_and_a_script_only_where_that_posts_itself() -> None:
    user = User("local", "local")
    for posts_itself in (False, True):
        page = login_page("code", user, None, posts_itself=posts_itself)
        assert page.count("<form") == page.count("</form>") == 1
        assert ("login.js" in page) == ("data-posts-itself" in page) == posts_itself
    assert "<form" not in refusal_page(ApiError("token_invalid", "too old"))
