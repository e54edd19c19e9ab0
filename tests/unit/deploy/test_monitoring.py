"""The dashboard and the alerts ask for what /metrics really serves."""

import json
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml

from graph.events import IncidentReported, Reasoned
from service.http.metrics import Metrics
from service.sessions.model import STATES
from tests.unit.deploy.reading import DEPLOY

OF_PROMETHEUS = {"up"}
INTERVAL = "$__rate_interval"


def queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/asap.json").read_text())
    alerts = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


def selectors(node: Any) -> Iterator[Any]:  # noqa: ANN401 - promql-parser has no types
    """Every metric with its matchers in a parsed query."""
    if isinstance(node, promql.VectorSelector):
        yield node
        return
    parts = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    for part in [*parts, *getattr(node, "args", [])]:
        if part is not None:
            yield from selectors(part)


def asked_for(query: str) -> list[Any]:
    return list(selectors(promql.parse(query.replace(INTERVAL, "5m"))))


@pytest.fixture
def served() -> dict[str, set[str]]:
    """Every series that /metrics may serve, with its labels."""
    metrics = Metrics(lambda: dict.fromkeys(STATES, 0))
    metrics.measure("GET", "/v1/sessions", 200, 0.1)
    metrics.observe_wait(0.1)
    metrics.observe_event(Reasoned(node="proposal", seconds=1, tokens=1, question="x"))
    metrics.observe_event(IncidentReported(node="proposal", error="E"))
    series: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def test_every_metric_that_is_asked_for_is_served(served: dict[str, set[str]]) -> None:
    asked = [metric for query in queries() for metric in asked_for(query)]
    assert len(asked) > 10
    assert {metric.name for metric in asked} - OF_PROMETHEUS <= set(served)
    wrong = [
        f"{metric.name}: {label.name}"
        for metric in asked
        for label in metric.matchers.matchers
        if metric.name in served and label.name not in served[metric.name]
    ]
    assert wrong == []


def test_every_metric_of_our_own_is_on_the_dashboard(served: dict[str, set[str]]) -> None:
    asked = {metric.name for query in queries() for metric in asked_for(query)}
    ours = {name for name in served if not name.endswith(("_sum", "_count"))}
    assert ours <= asked
