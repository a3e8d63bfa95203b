"""The Helm chart, rendered by Helm, against Kubernetes' schemas and Parley's settings."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.config.models import parse_model
from server.config.settings import PREFIX, Settings
from server.engines.native.preparation import name_of
from sessions.connection.address import RedisAddress
from tests.deployment.packages import CHART, HELM, ask, schema
from tests.deployment.read_settings import public_routes, read_settings
from tests.server.telemetry.test_metrics import exported

RENDER = """
import json, helm_python
question = json.load(sys.stdin)
chart, values = question["chart"], question["values"]
try:
    report = helm_python.lint(chart, values, strict=True, kube_version="v1.33.0")
    rendered = helm_python.Chart.load(chart).render(values, name="chat", namespace="prod")
    print(json.dumps({"lint": report, "files": rendered}))
except helm_python.HelmError as error:
    print(json.dumps({"refused": str(error)}))
"""
ENGINES = CHART / "engines.example.yaml"
EXAMPLES = sorted(set(CHART.glob("*.example.yaml")) - {ENGINES})
SECRET = {"secret": {"name": "parley"}}
KINDS = {  # what each example consists of, at least
    "sentinel": {"Deployment", "StatefulSet", "Service", "Ingress", "ConfigMap"},
    "cluster": {"Deployment", "StatefulSet", "Job", "ScaledObject", "PodMonitor"},
}
SERIES = re.compile(r"parley_[a-z_]+")
SUFFIXES = ("_bucket", "_sum", "_count")

Objects = list[dict[str, Any]]


@cache
def said(values: str) -> dict[str, Any]:
    answer: dict[str, Any] = ask(HELM, RENDER, {"chart": str(CHART), "values": json.loads(values)})
    return answer


def rendered(values: Mapping[str, Any]) -> Objects:
    """All objects that the chart makes of these values."""
    answer = said(json.dumps(values, sort_keys=True))
    assert "refused" not in answer, answer
    files = [text for name, text in answer["files"].items() if name.endswith(".yaml")]
    return [each for text in files for each in yaml.safe_load_all(text) if each is not None]


def refusal(values: Mapping[str, Any]) -> str:
    return str(said(json.dumps(values, sort_keys=True)).get("refused", ""))


def example(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    return values


def one(objects: Objects, kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def server(objects: Objects) -> dict[str, Any]:
    """What is said of the pods of Parley."""
    pod: dict[str, Any] = one(objects, "Deployment")["spec"]["template"]["spec"]
    return pod


def environment(objects: Objects) -> dict[str, str]:
    """Parley's settings; those of a Secret stand for themselves."""
    (container,) = server(objects)["containers"]
    return {
        each["name"]: each.get(
            "value", each.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
        )
        for each in container["env"]
        if each["name"].startswith(PREFIX)
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_helm_has_nothing_against_the_chart(path: Path) -> None:
    answer = said(json.dumps(example(path), sort_keys=True))
    assert answer["lint"]["errors"] == []
    assert [each for each in answer["lint"]["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_rendered_is_what_kubernetes_takes(path: Path) -> None:
    objects = rendered(example(path))
    assert KINDS[path.name.partition(".")[0]] <= {each["kind"] for each in objects}
    own = [(each, schema(each["kind"], each["apiVersion"])) for each in objects]
    assert {each["kind"] for each, found in own if found is None} <= {"ScaledObject", "PodMonitor"}
    for each, found in own:
        problems = [] if found is None else list(found.iter_errors(each))
        assert [
            f"{each['kind']}: {problem.json_path}: {problem.message}" for problem in problems
        ] == []


def test_an_unknown_field_of_kubernetes_is_found() -> None:
    deployment = one(rendered(SECRET), "Deployment")
    deployment["spec"]["template"]["spec"]["enableServiceLink"] = False
    found = schema("Deployment", "apps/v1")
    assert found is not None
    assert [problem.validator for problem in found.iter_errors(deployment)] != []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_parley_takes_the_settings_that_its_pods_get(path: Path) -> None:
    given = environment(rendered(example(path)))
    settings = read_settings(given)
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    kind = path.name.partition(".")[0]
    address = RedisAddress.parse(given["PARLEY_REDIS_URL"])
    assert address.kind == kind
    assert address.options["password"] == "$(REDIS_PASSWORD)"  # Kubernetes puts it there
    redis = one(rendered(example(path)), "StatefulSet")
    hosts = [host for host, _ in address.nodes]
    name = redis["metadata"]["name"]
    assert hosts == [f"{name}-{n}.{name}.prod.svc" for n in range(redis["spec"]["replicas"])]
    variables = {
        each["name"]: each for each in redis["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["NODES"]["value"].split(" ") == hosts


def test_every_setting_that_the_chart_does_not_make_itself_can_be_given() -> None:
    refused = set(
        json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"][
            "propertyNames"
        ]["not"]["enum"]
    )
    assert refused <= set(Settings.model_fields)
    given = dict.fromkeys(sorted(set(Settings.model_fields) - refused), "x")
    names = environment(rendered({**SECRET, "settings": given}))
    assert {f"{PREFIX}{name.upper()}" for name in given} <= set(names)
    said_of_all = refusal({**SECRET, "settings": dict.fromkeys(refused, "x")})
    assert set(re.findall(r"invalid propertyName '(\w+)'", said_of_all)) == refused


def test_an_existing_redis_is_named_by_the_secret() -> None:
    objects = rendered({**SECRET, "redis": {"mode": "external"}})
    assert not [each for each in objects if each["kind"] in ("StatefulSet", "ConfigMap")]
    assert environment(objects)["PARLEY_REDIS_URL"] == "redis-url"


def test_engines_that_lie_elsewhere_are_named_with_their_keys() -> None:
    engines = pytest.importorskip("server.config.engines")
    objects = rendered(example(ENGINES))
    settings: Any = read_settings(environment(objects))
    entries = engines.parse_engines(settings.engines)
    assert [(each.kind, each.url) for each in entries] == [
        ("vllm", "http://vllm-0.vllm:8000"),
        ("vllm", "http://vllm-1.vllm:8000"),
    ]
    (container,) = server(objects)["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert {str(each.key_file.parent) for each in entries} == {mounts["engines"]}
    (source,) = settings.models
    assert source.source.startswith(mounts["models"])
    deployment = one(objects, "Deployment")
    found = schema("Deployment", "apps/v1")
    assert found is not None and list(found.iter_errors(deployment)) == []


def test_what_cannot_work_is_refused_in_one_line() -> None:
    assert "secret.name" in refusal({})
    assert "needs 6" in refusal({**SECRET, "redis": {"mode": "cluster", "nodes": 3}})
    assert refusal({**SECRET, "redis": {"mode": "sentinels"}})
    assert refusal({**SECRET, "autoscaling": {"kind": "vpa"}})


def test_no_variable_of_kubernetes_own_can_be_taken_for_a_setting() -> None:
    """A Service `parley` would set PARLEY_PORT and others in each pod."""
    for each in rendered(example(CHART / "cluster.example.yaml")):
        pod = each.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            assert pod["enableServiceLinks"] is False, each["kind"]


def test_probes_ask_routes_that_need_no_token() -> None:
    public = public_routes()
    for path in EXAMPLES:
        (container,) = server(rendered(example(path)))["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["path"] in public
            assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]


@pytest.mark.parametrize("seconds", [0, 30, 95.5])
def test_a_server_has_the_time_to_let_answers_finish(seconds: float) -> None:
    objects = rendered({**SECRET, "settings": {"drain_seconds": seconds}})
    (container,) = server(objects)["containers"]
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    # 10 s after the drain a worker is ended.
    wanted = before + math.ceil(read_settings(environment(objects)).drain_seconds) + 10
    assert server(objects)["terminationGracePeriodSeconds"] > wanted


def test_what_scales_servers_is_measured_by_parley() -> None:
    """A series that Prometheus does not have is no error there: nothing would ever scale."""
    keda = one(rendered(example(CHART / "cluster.example.yaml")), "ScaledObject")
    queries = [each["metadata"]["query"] for each in keda["spec"]["triggers"]]
    hpa = one(rendered({**SECRET, "autoscaling": {"kind": "hpa"}}), "HorizontalPodAutoscaler")
    found = schema("HorizontalPodAutoscaler", "autoscaling/v2")
    assert found is not None and list(found.iter_errors(hpa)) == []
    queries += [each["pods"]["metric"]["name"] for each in hpa["spec"]["metrics"]]
    assert len(queries) == 5
    names = exported()
    for query in queries:
        for series in SERIES.findall(query):
            name = next((series[: -len(end)] for end in SUFFIXES if series.endswith(end)), series)
            assert names.get(name) == ("histogram" if name != series else "gauge"), query
    assert all('model="qwen3-8b"' in query for query in queries[:3])
    assert (
        "replicas"
        not in one(rendered(example(CHART / "cluster.example.yaml")), "Deployment")["spec"]
    )


def test_servers_are_scaled_by_figures_of_the_model_that_they_serve(tmp_path: Path) -> None:
    (tmp_path / "qwen3-8b").mkdir()  # as it is mounted there
    for values in ({}, example(CHART / "cluster.example.yaml")):
        (pod,) = server(rendered({**SECRET, **values}))["containers"]
        (model,) = (each["value"] for each in pod["env"] if each["name"] == "PARLEY_MODEL")
        source = parse_model(model.replace("/models", str(tmp_path)))
        scaling = {**defaults()["autoscaling"], **values.get("autoscaling", {})}
        assert scaling["model"] == name_of(source)


def defaults() -> dict[str, Any]:
    return example(CHART / "values.yaml")


def test_servers_whose_engines_lie_elsewhere_are_scaled_by_their_processor() -> None:
    objects = rendered(example(ENGINES))
    hpa = one(objects, "HorizontalPodAutoscaler")
    (metric,) = hpa["spec"]["metrics"]
    assert metric["resource"]["name"] == "cpu"
    (container,) = server(objects)["containers"]
    assert container["resources"]["requests"]["cpu"]  # of which the share is taken
    found = schema("HorizontalPodAutoscaler", "autoscaling/v2")
    assert found is not None and list(found.iter_errors(hpa)) == []
    assert "processor" in refusal({**example(ENGINES), "autoscaling": {"kind": "keda"}})


def test_prometheus_shows_the_token_that_the_server_has() -> None:
    monitor = one(rendered(example(CHART / "cluster.example.yaml")), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "parley", "key": "token"}
    assert endpoint["path"] == "/metrics"
    labels = server_labels(rendered(example(CHART / "cluster.example.yaml")))
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def server_labels(objects: Objects) -> dict[str, str]:
    labels: dict[str, str] = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    return labels


def test_services_find_their_pods() -> None:
    objects = rendered(example(CHART / "sentinel.example.yaml"))
    redis = one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for service in (each for each in objects if each["kind"] == "Service"):
        chosen = service["spec"]["selector"].items()
        is_redis = service["metadata"]["name"].endswith("-redis")
        assert chosen <= (redis if is_redis else server_labels(objects)).items()
        assert not chosen <= (server_labels(objects) if is_redis else redis).items()


def test_the_files_of_redis_are_those_that_other_tests_run() -> None:
    files = one(rendered(example(CHART / "sentinel.example.yaml")), "ConfigMap")["data"]
    assert files == {path.name: path.read_text() for path in (CHART / "files").iterdir()}
    pod = one(rendered(example(CHART / "sentinel.example.yaml")), "StatefulSet")["spec"]["template"]
    run = [each["command"][-1].rpartition("/")[2] for each in pod["spec"]["containers"]]
    assert run == ["start-redis.sh", "start-sentinel.sh"]
    assert set(run) <= set(files)
