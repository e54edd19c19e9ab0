"""What deploy/ offers for the nightly run is what Kubernetes and `asap nightly` take."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph.request import parse_request
from service.nightly.config import Config, check_modes, parse

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "nightly-cronjob.yaml").read_text()))


def test_kubernetes_takes_the_manifest(documents: list[dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the development packages")
    assert [document["kind"] for document in documents] == ["ConfigMap", "PersistentVolumeClaim", "CronJob"]
    for document in documents:
        validate.validate(document, validate.latest_version(), strict=True)


def test_the_configuration_in_it_can_be_read(documents: list[dict[str, Any]]) -> None:
    data = documents[0]["data"]
    config = parse(Config, yaml.safe_load(data["nightly.yaml"]))
    check_modes(config, may_tune=False, may_wait=False)
    for workload in config.workloads:
        assert isinstance(workload.scenario, str)
        parse_request(json.loads(data[workload.scenario]))


def test_a_night_is_neither_repeated_nor_run_beside_another(documents: list[dict[str, Any]]) -> None:
    spec = documents[2]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
