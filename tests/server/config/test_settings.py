"""`Settings`: checked together, once, with one line that names what is wrong."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.config.intervals import SHORTENED, Intervals
from server.config.settings import ConfigError, Settings, load_settings, read_or_create_secret


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PARLEY_")]:
        monkeypatch.delenv(name)


def refused(**flags: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_defaults_listen_on_loopback_without_limits_per_user() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8000, 1)
    limits = settings.limits
    assert (limits.max_connections_per_user, limits.max_handshakes_per_s) == (0, 0)
    assert limits.max_connections == 10_000
    assert limits.messages_per_s == 20


@pytest.mark.row("P17")
def test_the_queue_for_the_engine_is_bounded_unless_the_bound_is_removed() -> None:
    assert load_settings({}).max_num_queued_reqs == 256
    assert load_settings({"max_num_queued_reqs": 0}).max_num_queued_reqs == 0
    assert "max_num_queued_reqs" in refused(max_num_queued_reqs=-1)


def test_an_exposed_address_has_limits_and_what_is_set_counts() -> None:
    limits = load_settings({"host": "0.0.0.0", "max_connections_per_user": 0}).limits
    assert (limits.max_connections_per_user, limits.max_connections_per_address) == (0, 64)
    assert (limits.max_handshakes_per_s, limits.max_active_responses_per_user) == (20, 4)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("192.168.1.5", False), ("chat.example", False)),
    ],
)
def test_what_only_this_machine_can_reach(host: str, loopback: bool) -> None:
    assert load_settings({"host": host}).is_loopback is loopback


def test_testing_shortens_every_interval_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).intervals == Intervals()
    assert load_settings({"drain_seconds": 7}).intervals == Intervals(drain=7)
    monkeypatch.setenv("PARLEY_TESTING", "1")
    assert load_settings({}).intervals == SHORTENED
    assert load_settings({"drain_seconds": 7}).intervals.drain == 7
    assert load_settings({"ping_seconds": 7}).intervals.ping == 7
    for name in Intervals.__struct_fields__:
        assert getattr(SHORTENED, name) < getattr(Intervals(), name)


def test_an_owner_renews_several_times_and_falls_silent_before_its_lease_ends() -> None:
    for intervals in (Intervals(), SHORTENED):
        assert 3 * intervals.renewal < intervals.silence < intervals.lease
        assert intervals.heartbeat < intervals.heartbeat_life


def test_a_flag_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_PORT", "9000")
    monkeypatch.setenv("PARLEY_WORKERS", "3")
    settings = load_settings({"port": 9001, "workers": None})
    assert (settings.port, settings.workers) == (9001, 3)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PARLEY_MAX_MESAGES_PER_S", "PARLEY_MAX_MESSAGES_PER_S"),
        ("PARLEY_WORKER", "PARLEY_WORKERS"),
        ("PARLEY_REDIS", "PARLEY_REDIS_URL"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings({}, {name: "1"})
    assert name in str(raised.value)
    assert f"did you mean {near}?" in str(raised.value)


def test_an_unknown_name_that_is_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings({}, {"PARLEY_FOO": "1"})
    assert str(raised.value) == "unknown setting PARLEY_FOO"


def test_names_of_others_are_left_alone() -> None:
    load_settings({}, {"PARLEY_REDIS_SERVER": "x", "PATH": "y", "parley": "z"})


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"port": -1}, "port"),
        ({"port": 70_000}, "port"),
        ({"workers": 0}, "workers"),
        ({"workers": "many"}, "workers"),
        ({"pace": -1}, "pace"),
        ({"max_messages_per_s": -1}, "max_messages_per_s"),
        ({"max_connections_per_user": "64kb"}, "max_connections_per_user"),
        ({"drain_seconds": -0.1}, "drain_seconds"),
        ({"device": "gpu"}, "device"),
        ({"attn_backend": "flash"}, "attn_backend"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization"),
        ({"dtype": "int8"}, "dtype"),
        ({"quantize": "int3"}, "quantize"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"log_level": "loud"}, "log_level"),
        ({"token": ""}, "token"),
        ({"token": "   "}, "token"),
        ({"token": "žluťoučký-kůň"}, "token"),
        ({"token": "short"}, "token"),
        ({"host": "0.0.0.0", "admin_token": "x" * 23}, "admin_token"),
        ({"token": "same" * 10, "admin_token": "same" * 10}, "admin_token"),
        ({"allowed_origins": "*"}, "allowed_origins"),
        ({"lora_dir": "/nonexistent"}, "lora_dir"),
        ({"max_lora_rank": 0}, "max_lora_rank"),
        ({"trusted_proxies": "*"}, "trusted_proxies"),
        ({"trusted_proxies": "127.0.0.1, proxy.example"}, "trusted_proxies"),
        ({"allowed_origins": "https://chat.example/"}, "allowed_origins"),
        ({"allowed_origins": "https://a.example, chat.example"}, "allowed_origins"),
    ],
)
def test_a_bad_value_is_refused_by_name(flags: dict[str, object], name: str) -> None:
    message = refused(**flags)
    assert name in message
    for secret in ("short", "x" * 23, "same" * 10):
        assert secret not in message


def test_origins_are_a_list_without_case() -> None:
    settings = load_settings({"allowed_origins": " https://A.example ,http://b.example:80, "})
    assert settings.origins == ("https://a.example", "http://b.example:80")


@pytest.mark.row("B62", "P3")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "chat.example"])
@pytest.mark.parametrize("name", ["token", "admin_token"])
def test_a_weak_token_is_refused_on_loopback_too(host: str, name: str) -> None:
    for weak in ("", " ", "x" * 23):
        assert name in refused(**{"host": host, name: weak})
    assert load_settings({"host": host, name: "x" * 24})
    assert load_settings({"host": host}).token is None  # one is made, of 43 characters


def test_trusted_proxies_are_addresses_and_networks() -> None:
    settings = load_settings({"trusted_proxies": " 127.0.0.1 ,10.0.0.0/8,"})
    assert settings.proxies == ("127.0.0.1", "10.0.0.0/8")
    assert load_settings({}).proxies == ()


def test_every_setting_has_a_help_text() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_a_secret_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = read_or_create_secret(path)
    assert read_or_create_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(first) >= 43


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["serve", "--port", "70000"], {}, ["port"]),
        (["serve", "--port", "abc"], {}, ["port"]),
        (["serve", "--prot", "1"], {}, ["--prot", "--port"]),
        (["serve"], {"PARLEY_TOKEN": "short"}, ["token", "24"]),
        (["serve", "--token", "x" * 30], {}, ["--token"]),
        (["serve", "--redis-url", "redis://:secret@host"], {}, ["redis_url", "PARLEY_REDIS_URL"]),
        (["serve", "--otlp-endpoint", "http://h?api-key=secret"], {}, ["PARLEY_OTLP_ENDPOINT"]),
        (["serve"], {"PARLEY_MAX_TOKNES": "5"}, ["PARLEY_MAX_TOKNES"]),
        (["serve"], {"PARLEY_WORKRES": "5"}, ["PARLEY_WORKRES", "PARLEY_WORKERS"]),
        (["serve"], {"PARLEY_WORKERS": "none"}, ["workers"]),
        (["login", "--data-dir", "/nonexistent"], {}, ["no server is running"]),
        (["nonsense"], {}, ["nonsense"]),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(
    arguments: list[str],
    environment: dict[str, str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


def test_help_lists_every_setting_but_secrets_with_its_name_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    result = CliRunner().invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    for name in Settings.model_fields:
        is_option = name not in ("testing", "token", "admin_token", "redis_secret")
        assert (f"--{name.replace('_', '-')} " in result.output) == is_option, name
        assert (f"PARLEY_{name.upper()}]" in result.output) == is_option, name
