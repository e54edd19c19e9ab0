"""The manifests, judged by Kubernetes' own schemas and by what ASAP takes."""

import json
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from graph.request import parse_request
from service.nightly.config import Config, check_modes, parse
from tests.unit.deploy.reading import DEPLOY, check_command, manifests, unknown_settings

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
FILES = [*KUSTOMIZATION["resources"], "first-key.yaml"]
NIGHTLY = "../nightly-cronjob.yaml"


def validate(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("file", [*FILES, NIGHTLY])
def test_kubernetes_takes_each_manifest(file: str) -> None:
    for manifest in manifests(file):
        validate(manifest)


def test_a_misspelt_field_would_be_found() -> None:
    manifest = manifests("worker.yaml")[0]
    manifest["spec"]["replicsa"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(manifest)


def test_every_file_of_the_folder_is_used() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {*FILES, "kustomization.yaml"}


@pytest.mark.real
def test_kustomize_puts_them_together() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(FOLDER)]
    made = list(
        yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    )
    for manifest in made:
        validate(manifest)
    assert {manifest["metadata"]["namespace"] for manifest in made} == {"asap"}
    config = next(manifest["metadata"]["name"] for manifest in made if manifest["kind"] == "ConfigMap")
    pods = [manifest["spec"]["template"]["spec"] for manifest in made if manifest["kind"] == "Deployment"]
    assert [pod["containers"][0]["envFrom"][0]["configMapRef"]["name"] for pod in pods] == [config, config]


@pytest.mark.parametrize("file", ["api.yaml", "worker.yaml", "first-key.yaml"])
def test_asap_takes_the_command_and_runs_without_privileges(file: str) -> None:
    pod = manifests(file)[0]["spec"]["template"]["spec"]
    check_command(pod["containers"][0]["args"])
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_nightly_run_has_a_configuration_that_can_be_read_and_runs_alone() -> None:
    config_map, _, job = manifests(NIGHTLY)
    config = parse(Config, yaml.safe_load(config_map["data"]["nightly.yaml"]))
    check_modes(config, may_tune=False, may_wait=False)
    for workload in config.workloads:
        assert isinstance(workload.scenario, str)
        parse_request(json.loads(config_map["data"][workload.scenario]))
    assert (job["kind"], job["spec"]["concurrencyPolicy"]) == ("CronJob", "Forbid")
    assert job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0


def test_the_settings_exist() -> None:
    literals = KUSTOMIZATION["configMapGenerator"][0]["literals"]
    assert unknown_settings({literal.partition("=")[0] for literal in literals}) == set()


def test_a_service_finds_its_pods() -> None:
    for file in ("api.yaml", "postgres.yaml", "chroma.yaml"):
        found = {manifest["kind"]: manifest for manifest in manifests(file)}
        workload = found.get("Deployment") or found["StatefulSet"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert found["Service"]["spec"]["selector"].items() <= labels.items()
