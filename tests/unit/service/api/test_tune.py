"""Trials over HTTP: refused before anything is queued, or taken with their budget, policy and template."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.served import SCENARIO, Serve, Served

TUNE = SCENARIO | {"mode": "tune"}
TEMPLATE = """
[[template]]
name = "{name}"
launcher = "local"
command = ["train", "{{scenario}}"]
limits = {{ wall_s = 60, devices = {devices} }}
"""


@pytest.fixture
def tuning(serve: Serve, tmp_path: Path) -> Served:
    file = tmp_path / "templates.toml"
    file.write_text(TEMPLATE.format(name="usual", devices=8) + TEMPLATE.format(name="small", devices=2))
    return serve(launch_templates=file, launch_template="usual")


def refused(served: Served, body: dict[str, Any]) -> dict[str, Any]:
    answer = served.client.post("/v1/sessions", json=body)
    assert answer.status_code == 422, answer.text
    problem: dict[str, Any] = answer.json()
    return problem


def test_tune_without_templates_is_refused_with_the_reason(served: Served) -> None:
    problem = refused(served, TUNE)
    assert problem["field"] == "mode"
    assert "ASAP_LAUNCH_TEMPLATES" in problem["detail"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"template": "sh -c id"}, "template"),
        ({"template": "small"}, "cluster.num_devices"),
        ({"budget": {"trials": 65}}, "budget.trials"),
        ({"approval": "policy", "policy": {"fields": ["tpp"]}}, "policy.fields"),
        ({"policy": {"fields": ["tp"]}}, "policy"),
    ],
)
def test_what_cannot_be_is_named(tuning: Served, more: dict[str, Any], field: str) -> None:
    assert refused(tuning, TUNE | more)["field"] == field


def test_a_session_keeps_its_budget_policy_and_template(tuning: Served) -> None:
    asked = {
        "approval": "policy",
        "policy": {"fields": ["micro_batch_size"]},
        "budget": {"trials": 3, "device_hours": 0.5},
        "template": "usual",
    }
    id = tuning.submit(TUNE | asked)
    session = tuning.client.get(f"/v1/sessions/{id}").json()
    assert (session["mode"], session["approval"]) == ("tune", "policy")
    assert session["budget"] == asked["budget"]
    assert session["request"]["policy"] == asked["policy"]
    assert session["request"]["template"] == "usual"
