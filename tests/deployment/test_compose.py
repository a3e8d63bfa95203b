"""The file for Docker Compose, against Compose's format and Parley's settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from sessions.connection.address import RedisAddress
from tests.deployment.packages import CHART, COMPOSE, DEPLOYMENT, ask
from tests.deployment.read_settings import public_routes, read_settings

FOLDER = DEPLOYMENT / "compose"
FILE = FOLDER / "compose.yaml"
CHECK = """
import json
from compose_spec import PyCompose
try:
    PyCompose.from_json(sys.stdin.read()).validate()
    print(json.dumps(""))
except ValueError as error:
    print(json.dumps(str(error)))
"""
GIVEN = {"REDIS_PASSWORD": "letters1", "TOKEN": "t" * 40, "ADMIN_TOKEN": "a" * 40}
VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")
SECONDS = {"s": 1, "m": 60}


def interpolated(text: str) -> str:
    """As Compose puts variables into the file; one that must be set and is not is a KeyError."""

    def value(found: re.Match[str]) -> str:
        name, how, word = found.groups()
        if name is None:
            return "$"
        return GIVEN.get(name, word) if how == ":-" else GIVEN[name]

    return VARIABLE.sub(value, text)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated(FILE.read_text()))
    return found


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]


def test_compose_takes_the_file() -> None:
    assert ask(COMPOSE, CHECK, compose()) == ""


def test_a_wrong_word_in_the_file_is_found() -> None:
    wrong = compose()
    wrong["services"]["parley"]["restrat"] = "always"
    assert "restrat" in ask(COMPOSE, CHECK, wrong)


def test_without_a_secret_the_refusal_names_which_to_set() -> None:
    needed = re.findall(r"\$\{(\w+):\?[^}]+\}", FILE.read_text())
    assert set(needed) == set(GIVEN)


def test_parley_takes_the_settings_that_it_gets() -> None:
    settings = read_settings(services()["parley"]["environment"])
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    assert settings.redis_url is not None
    address = RedisAddress.parse(settings.redis_url)
    assert (address.kind, address.service) == ("sentinel", "parley")
    assert address.options["password"] == GIVEN["REDIS_PASSWORD"]
    assert {host for host, _ in address.nodes} <= set(services())


def test_each_sentinel_is_found_at_the_address_of_the_redis_that_it_stands_beside() -> None:
    found = services()
    hosts = found["redis-0"]["environment"]["NODES"].split(" ")
    for host in hosts:
        sentinel = found[host.replace("redis", "sentinel")]
        assert sentinel["network_mode"] == f"service:{host}"
        assert sentinel["environment"] == found[host]["environment"]
        assert sentinel["environment"]["HOST"] == host
        assert sentinel["volumes"] == found[host]["volumes"]
        for each in (sentinel, found[host]):
            assert (CHART / "files" / each["command"][-1].rpartition("/")[2]).is_file()
    assert len(hosts) == 3


def test_only_the_proxy_is_believed_and_it_has_that_address() -> None:
    settings = read_settings(services()["parley"]["environment"])
    address = services()["caddy"]["networks"]["default"]["ipv4_address"]
    assert settings.trusted_proxies == address
    (network,) = compose()["networks"]["default"]["ipam"]["config"]
    assert address.rpartition(".")[0] == network["subnet"].rpartition(".")[0]


def test_a_server_has_the_time_to_let_answers_finish_and_is_asked_where_no_token_is_needed() -> (
    None
):
    parley = services()["parley"]
    drain = read_settings(parley["environment"]).drain_seconds
    assert seconds(parley["stop_grace_period"]) > drain + 10
    program = parley["healthcheck"]["test"][-1]
    compile(program, "healthcheck", "exec")
    path = re.search(r"http://127\.0\.0\.1:8000(/\w+)", program)
    assert path is not None and path[1] in public_routes()


def test_what_is_built_and_mounted_is_there() -> None:
    build = services()["parley"]["build"]
    assert ((FOLDER / build["context"]).resolve() / build["dockerfile"]).is_file()
    mounted = [each for service in services().values() for each in service.get("volumes", ())]
    paths = [each.partition(":")[0] for each in mounted if each.startswith(".")]
    assert paths
    for path in paths:
        assert path == "./models" or (FOLDER / path).exists(), path


# Caddy is one of several proxies, which `make setup` does not install.
@pytest.mark.skipif(shutil.which("caddy") is None, reason="there is no caddy")
def test_caddy_takes_its_file_and_sends_all_to_parleys_port() -> None:
    command = ["caddy", "adapt", "--adapter", "caddyfile", "--config", str(FOLDER / "Caddyfile")]
    environment = services()["caddy"]["environment"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    settings = read_settings(services()["parley"]["environment"])
    assert f'"name":"parley","port":"{settings.port}"' in done.stdout.replace(" ", "")
    assert environment["SITE"] in done.stdout
