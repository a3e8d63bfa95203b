"""What `/login` shows: whose link it is and a button, or why it opens nothing.

A page without the modules of the chat page, so that it works without scripts too. Everything that
users wrote is escaped text.
"""

from html import escape

from server.access.identities import User
from server.protocol.errors import ApiError

_MARK = """<svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
<path class="first" d="M4 8.5A4.5 4.5 0 0 1 8.5 4h8A4.5 4.5 0 0 1 21 8.5v3a4.5 4.5 0 0 1-4.5 \
4.5H10l-4.6 3.6A.9.9 0 0 1 4 18.9Z" />
<path class="second" d="M28 17.5A4.5 4.5 0 0 0 23.5 13.1V13c0 3.6-2.9 6.5-6.5 6.5h-4.3A4.5 4.5 0 \
0 0 16.5 24H22l4.6 3.6A.9.9 0 0 0 28 26.9Z" />
</svg>"""


def login_page(code: str, user: User, here: User | None, *, posts_itself: bool = False) -> str:
    """The page of a code that lets `user` in, for a browser in which `here` is logged in.

    `posts_itself`: a browser with scripts sends the form at once.
    """
    name = escape(user.name)
    if here is None or here.uid == user.uid:
        title, instead = f"Log in as {name}", ""
        words = f"<p>This link logs this browser in as <strong>{name}</strong>.</p>"
        if here is not None:
            words = f"<p>This browser is logged in as <strong>{name}</strong> already.</p>"
    else:
        title = f"Log in as {name} instead?"
        instead = f'<input type="hidden" name="instead_of" value="{escape(here.uid)}">'
        words = (
            f"<p>This browser is logged in as <strong>{escape(here.name)}</strong>. "
            f"This link would log it in as <strong>{name}</strong>.</p>\n"
            f'<p class="muted">If you did not expect that, do not go on: '
            f"what you write afterwards goes to {name}’s account.</p>"
        )
    stay = "" if here is None else '\n<a class="plain" href="/">Stay as you are</a>'
    form = f"""<div class="choices">
<form method="post" action="/login"{" data-posts-itself" if posts_itself else ""}>
<input type="hidden" name="code" value="{escape(code)}">{instead}
<button type="submit" class="primary">Log in as {name}</button>
</form>{stay}
</div>"""
    return _page(title, f"{words}\n{form}", has_script=posts_itself)


def refusal_page(error: ApiError) -> str:
    """Why a login link opens nothing."""
    message = error.message[:1].upper() + error.message[1:]
    return _page(
        "This login link does not work",
        f"<p>{escape(message)}.</p>\n"
        '<p class="muted">Run <code>parley login</code> for another one, '
        "or ask the person who invited you.</p>",
    )


def _page(title: str, body: str, *, has_script: bool = False) -> str:
    script = '\n<script src="/static/js/login.js" defer></script>' if has_script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1, viewport-fit=cover">
<meta name="robots" content="noindex">
<meta name="color-scheme" content="light dark">
<meta name="theme-color" content="#fdfdfc" media="(prefers-color-scheme: light)">
<meta name="theme-color" content="#15191c" media="(prefers-color-scheme: dark)">
<link rel="icon" href="/static/favicon.svg" type="image/svg+xml">
<script src="/static/js/widgets/theme-first.js"></script>
<link rel="stylesheet" href="/static/css/reset.css">
<link rel="stylesheet" href="/static/css/colors.css">
<link rel="stylesheet" href="/static/css/layout.css">{script}
</head>
<body>
<main class="card-place">
<section class="card" aria-labelledby="title">
{_MARK}
<h1 id="title">{title}</h1>
{body}
</section>
</main>
</body>
</html>
"""
