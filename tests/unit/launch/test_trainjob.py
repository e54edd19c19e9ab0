"""Manifests: accepted by Kubeflow's models, and as a pod by the schema of Kubernetes itself."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
pytest.importorskip("kubernetes_validate", reason="needs the development packages")

import kubernetes_validate

from tools.launch.status import Intent
from tools.launch.template import KubernetesSettings, read_templates
from tools.launch.trainjob import make_trainjob, object_name

REPO = Path(__file__).resolve().parents[3]
KUBERNETES = "1.37"
FULL = KubernetesSettings(
    namespace="ml", claim="trials", device_resource="nvidia.com/gpu", cpu="8", memory="64Gi"
)
PLAIN = KubernetesSettings(namespace="ml", claim="trials", runtime="mine", runtime_kind="TrainingRuntime")


def intent(**changes: Any) -> Intent:  # noqa: ANN401 - any field
    fields: dict[str, Any] = {
        "key": "k1",
        "launcher": "kubernetes",
        "template": "t",
        "digest": "d" * 64,
        "mark": "k1.mark",
        "command": ["torchrun", "-m", "testbed.trainer", "/asap/k1/inputs/scenario.json"],
        "environment": {"A": "1"},
        "workdir": "/asap/k1",
        "nnodes": 2,
        "nproc": 4,
        "wall_s": 600,
    }
    return Intent(**fields | changes)


def as_pod(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the controller makes of it, as far as it comes from us: the patch and the trainer in one pod."""
    trainer = manifest["spec"]["trainer"]
    job = manifest["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][
        0
    ]
    spec = job["template"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    container = container | {name: trainer[name] for name in ("image", "command", "env")}
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    metadata = {"name": manifest["metadata"]["name"], "labels": manifest["metadata"]["labels"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec | {"containers": [container]},
    }


@pytest.mark.parametrize("settings", [FULL, PLAIN])
def test_the_pod_of_a_manifest_is_legal_for_kubernetes(settings: KubernetesSettings) -> None:
    pod = as_pod(make_trainjob(intent(), settings, "trainer:1"))
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_the_check_would_find_a_wrong_pod() -> None:
    pod = as_pod(make_trainjob(intent(), FULL, "trainer:1"))
    pod["spec"]["volumes"][0]["persistentVolumeClaims"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_size_limit_and_runtime_are_those_of_job_and_template() -> None:
    spec = make_trainjob(intent(), FULL, "trainer:1")["spec"]
    assert spec["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
        "name": "torch-distributed",
    }
    assert spec["activeDeadlineSeconds"] == 600
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (2, 4)
    wanted = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}
    assert spec["trainer"]["resourcesPerNode"] == {"limits": wanted, "requests": wanted}
    own = make_trainjob(intent(), PLAIN, "trainer:1")["spec"]
    assert (own["runtimeRef"]["name"], own["runtimeRef"]["kind"]) == ("mine", "TrainingRuntime")
    assert "resourcesPerNode" not in own["trainer"]


def test_a_dollar_stays_a_dollar_to_kubernetes() -> None:
    manifest = make_trainjob(
        intent(command=["run", "$(SECRET)", "$$"], environment={"A": "$(B)"}), FULL, "trainer:1"
    )
    trainer = manifest["spec"]["trainer"]
    assert trainer["command"] == ["run", "$$(SECRET)", "$$$$"]
    assert trainer["env"][0] == {"name": "A", "value": "$$(B)"}


def test_the_longest_key_still_makes_a_legal_name() -> None:
    """A pod's name is the object's with -node-0-0-xxxxx behind it, and a label's value has 63 characters."""
    assert len(object_name("a" * 40) + "-node-0-0-xxxxx") <= 63


def test_the_examples_template_makes_a_legal_manifest() -> None:
    template = read_templates(REPO / "examples/launch-templates.toml")["reference-kubernetes"]
    assert template.kubernetes is not None
    assert template.image is not None
    pod = as_pod(make_trainjob(intent(environment=template.environment), template.kubernetes, template.image))
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
