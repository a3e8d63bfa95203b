"""The settings as admins see them: with their origin, and no secret."""

from pathlib import Path

import pytest

from server.config.settings import load_settings
from server.config.shown import MASK, masked, shown_settings

SECRET = "a-secret-of-24-characters"


def shown(flags: dict[str, object], environment: dict[str, str]) -> dict[str, tuple[object, str]]:
    settings = load_settings(flags, environment)
    return {one.name: (one.value, one.origin) for one in shown_settings(settings, environment)}


def test_each_setting_says_where_its_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_WORKERS", "3")
    found = shown({"port": 9000, "data_dir": Path("/var/lib/parley")}, {"PARLEY_WORKERS": "3"})
    assert found["PARLEY_PORT"] == ("9000", "option")
    assert found["PARLEY_WORKERS"] == ("3", "environment")
    assert found["PARLEY_LOG_LEVEL"] == ("info", "default")
    assert found["PARLEY_REDIS_URL"] == (None, "default")
    assert found["PARLEY_DATA_DIR"] == ("parley", "option")  # without the folders above it


def test_limits_that_follow_from_the_address_are_shown_as_they_hold() -> None:
    local = shown({}, {})["PARLEY_MAX_TOKENS_PER_DAY"]
    exposed = shown({"host": "0.0.0.0"}, {})
    assert local == ("0", "default")
    assert exposed["PARLEY_MAX_TOKENS_PER_DAY"] == ("200000", "default")
    assert exposed["PARLEY_MAX_ACTIVE_RESPONSES_PER_USER"] == ("4", "default")


def test_no_secret_is_shown() -> None:
    flags: dict[str, object] = {
        "token": SECRET,
        "admin_token": SECRET[::-1],
        "redis_secret": "hush",
        "redis_url": "redis://parley:hush@cache:6379/0",
    }
    found = shown(flags, {})
    for name in ("PARLEY_TOKEN", "PARLEY_ADMIN_TOKEN", "PARLEY_REDIS_SECRET"):
        assert found[name] == (MASK, "option")
    text = str(found)
    assert not any(secret in text for secret in (SECRET, SECRET[::-1], "hush"))
    assert "cache:6379" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pass@host/v1", f"https://{MASK}@host/v1"),
        ("https://key@host", f"https://{MASK}@host"),
        ("https://host/v1?api_key=abc&size=2", f"https://host/v1?api_key={MASK}&size=2"),
        ("redis://h?a=1&password=x#f", f"redis://h?a=1&password={MASK}#f"),
        ("a, openai=https://u:p@h;key=file", f"a, openai=https://{MASK}@h;key={MASK}"),
        ("no url at all: a@b", "no url at all: a@b"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
