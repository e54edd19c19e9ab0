"""The manifests, judged by Kubernetes' own schemas and by what ASAP takes."""

import ipaddress
import json
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from graph.request import parse_request
from service.addresses import METADATA
from service.schedules.config import Config, check_modes, parse
from tests.unit.deploy.reading import DEPLOY, SECRETS, check_command, manifests, unknown_settings

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
FILES = [*KUSTOMIZATION["resources"], "first-key.yaml"]
NIGHTLY = "../nightly-cronjob.yaml"
PODS = ["api.yaml", "worker.yaml", "first-key.yaml", "postgres.yaml", "chroma.yaml"]


def validate(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("file", [*FILES, NIGHTLY])
def test_kubernetes_takes_each_manifest(file: str) -> None:
    for manifest in manifests(file):
        validate(manifest)


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


@pytest.mark.parametrize("file", PODS)
def test_every_pod_is_fenced_in_and_its_secrets_are_set_nowhere(file: str) -> None:
    pod = manifests(file)[0]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        stated = {each["name"] for each in container.get("env", []) if "value" in each}
        assert stated & {*SECRETS, "POSTGRES_PASSWORD"} == set()
    if file not in ("postgres.yaml", "chroma.yaml"):
        assert {"secretRef": {"name": "asap"}} in pod["containers"][0]["envFrom"]


def test_no_pod_reaches_a_cloud_s_metadata() -> None:
    stores, ours = (manifest["spec"] for manifest in manifests("network-policy.yaml"))
    assert stores["egress"] == []
    outside = [peer["ipBlock"] for rule in ours["egress"] for peer in rule["to"] if "ipBlock" in peer]
    refused = [ipaddress.ip_network(net) for block in outside for net in block.get("except", [])]
    reached = [ipaddress.ip_network(block["cidr"]) for block in outside]
    for address in METADATA:
        assert not any(address in net for net in reached) or any(address in net for net in refused), address
