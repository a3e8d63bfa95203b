"""The settings as admins see them: with their origin, and no secret."""

import re
from pathlib import Path

import pytest

from server.config.masking import MASK
from server.config.settings import ConfigError, Settings, load_settings
from server.config.shown import SECRETS, shown_settings

SECRET = "a-secret-of-24-characters"


def shown(flags: dict[str, object], environment: dict[str, str]) -> dict[str, tuple[object, str]]:
    settings = load_settings(flags, environment)
    return {one.name: (one.value, one.origin) for one in shown_settings(settings)}


def test_each_setting_says_where_its_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_WORKERS", "3")
    found = shown({"port": 9000, "data_dir": Path("/var/lib/parley")}, {"PARLEY_WORKERS": "3"})
    assert found["PARLEY_PORT"] == ("9000", "option")
    assert found["PARLEY_WORKERS"] == ("3", "environment")
    assert found["PARLEY_LOG_LEVEL"] == ("info", "default")
    assert found["PARLEY_REDIS_URL"] == (None, "default")
    assert found["PARLEY_DATA_DIR"] == ("parley", "option")  # without the folders above it


def test_a_secret_of_the_environment_is_known_to_be_one_though_it_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARLEY_TOKEN", SECRET)
    settings = load_settings({}, {"PARLEY_TOKEN": SECRET})
    monkeypatch.delenv("PARLEY_TOKEN")
    (token,) = [one for one in shown_settings(settings) if one.name == "PARLEY_TOKEN"]
    assert (token.value, token.origin) == (MASK, "environment")


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


TEXTS = [  # settings that hold what an operator writes; the others are numbers and choices
    name
    for name, field in Settings.model_fields.items()
    if any(word in str(field.annotation) for word in ("str", "Path"))
]
NO_SECRET = {"max_tokens_per_day"}  # though their names look like one


def test_every_setting_whose_name_says_so_is_a_secret() -> None:
    named = {name for name in Settings.model_fields if re.search("token|secret|pass|key", name)}
    assert named - NO_SECRET == SECRETS
    assert len(TEXTS) > 15 and set(TEXTS) >= SECRETS


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "written",
    [
        f"https://user:{SECRET}@host/path",
        f"https://{SECRET}@host",
        f"https://host/path?api_key={SECRET}",
        f"https://host:99999/path?access_token={SECRET}",
        f"redis://:{SECRET}@host:6379/0",
        f"redis://user:{SECRET}@host:nowhere",
        f"redis+sentinel://:{SECRET}@host:1/service/0?sentinel_password={SECRET}",
        f"redis+sentinel://:{SECRET}@host",
        f"vllm=https://user:{SECRET}@host;weight=2",
        f"vllm=https://host?key={SECRET}",
        f"native=tcp://user:{SECRET}@host:7700;keys=folder",
        f"native=tcp://host:7700?key={SECRET};keys=folder",
        f"redis://:{SECRET}/and more?@host:6379/0",
        f"ftp://user:{SECRET}@host\nsecond line",
    ],
)
def test_no_setting_shows_the_secret_of_a_url_that_it_holds(
    name: str, written: str, tmp_path: Path
) -> None:
    """It is masked, or refused in words without it."""
    try:
        value = (written,) if "tuple" in str(Settings.model_fields[name].annotation) else written
        settings = load_settings({name: value}, {})
    except ConfigError as error:
        assert SECRET not in str(error)
        return
    told = str(shown_settings(settings))
    assert SECRET not in told


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_that_is_refused_is_not_in_the_refusal(name: str) -> None:
    for value in ("short-hush", "hush\u00e9" * 10, " " * 30):
        try:
            load_settings({name: value}, {})
        except ConfigError as error:
            assert value not in str(error) and "hush" not in str(error)
