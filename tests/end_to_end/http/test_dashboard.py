"""Grafana's dashboard in examples/deployment asks for what `/metrics` has."""

import json
import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as families_of

from tests.end_to_end.site.harness import Server
from tests.helpers.root import ROOT

DASHBOARD = ROOT / "examples" / "deployment" / "grafana" / "parley.json"
OF_PROMETHEUS = {"instance", "le"}  # labels that a scrape adds, and those of buckets


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(found) > 20
    return found


def test_each_metric_and_each_label_of_the_dashboard_is_there(server: Server) -> None:
    _, body = server.get("/metrics")
    families = list(families_of(body.decode()))
    labels: dict[str, set[str]] = {}
    for family in families:
        names = {family.name, *(sample.name for sample in family.samples)}
        if family.type == "counter":  # one that never counted has no sample
            names.add(f"{family.name}_total")
        if family.type == "histogram":
            names.add(f"{family.name}_bucket")
        for name in names:
            labels.setdefault(name, set()).update(*(sample.labels for sample in family.samples))
    for expression in expressions():
        names = set(re.findall(r"parley_\w+", expression))
        assert names and names <= labels.keys(), expression
        for grouping in re.findall(r"by \(([^)]*)\)", expression):
            known = set().union(*(labels[name] for name in names)) | OF_PROMETHEUS
            asked = {label.strip() for label in grouping.split(",")}
            has_samples = any(labels[name] for name in names)
            assert asked <= known or not has_samples, expression


def test_its_panels_have_places_of_their_own_and_each_target_a_name() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
