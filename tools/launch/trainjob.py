"""A job as a TrainJob of Kubeflow Trainer v2, checked by the models that its authors publish.

What a pod is made of beyond this (queue, gang, network, retries) is in the training runtime that the template
names. Fields: pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer.
"""

from typing import Any

from tools.launch.folder import Intent
from tools.launch.processes import MARK
from tools.launch.template import KubernetesSettings

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
DIGEST = "asap-digest"
NODE = "node"
"""What every training runtime calls its replicated job and its container."""
_VOLUME = "asap-jobs"
_MANAGER = "asap/launcher"


def object_name(key: str) -> str:
    """A DNS label; pods add a few characters to it."""
    return f"asap-{key}"


def make_trainjob(intent: Intent, settings: KubernetesSettings, image: str) -> dict[str, Any]:
    """The manifest, as the API takes it."""
    manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": object_name(intent.key),
            "namespace": settings.namespace,
            "labels": {"app.kubernetes.io/managed-by": "asap", "asap-key": intent.key},
            "annotations": {DIGEST: intent.digest},
        },
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": settings.runtime_kind, "name": settings.runtime},
            "activeDeadlineSeconds": intent.wall_s,
            "trainer": _trainer(intent, settings, image),
            "runtimePatches": [_patch(_pod(settings))],
        },
    }
    return _checked(manifest)


def _trainer(intent: Intent, settings: KubernetesSettings, image: str) -> dict[str, Any]:
    environment = {**intent.environment, MARK: intent.mark}
    trainer: dict[str, Any] = {
        "image": image,
        "command": list(map(_literal, intent.command)),
        "env": [{"name": name, "value": _literal(value)} for name, value in environment.items()],
        "numNodes": intent.nnodes,
        "numProcPerNode": intent.nproc,
    }
    resources = {"cpu": settings.cpu, "memory": settings.memory}
    if settings.device_resource:
        resources[settings.device_resource] = str(intent.nproc)
    wanted = {name: value for name, value in resources.items() if value}
    if wanted:
        # Requests equal to limits: neighbours must not disturb a measurement.
        trainer["resourcesPerNode"] = {"limits": wanted, "requests": wanted}
    return trainer


def _literal(text: str) -> str:
    """Kubernetes would replace `$(NAME)` in commands and variables; a doubled dollar is a dollar to it."""
    return text.replace("$", "$$")


def _pod(settings: KubernetesSettings) -> dict[str, Any]:
    claim = {"claimName": settings.claim}
    mount = {"name": _VOLUME, "mountPath": settings.mount_path}
    return {
        "volumes": [{"name": _VOLUME, "persistentVolumeClaim": claim}],
        "containers": [{"name": NODE, "volumeMounts": [mount]}],
    }


def _patch(pod: dict[str, Any]) -> dict[str, Any]:
    job = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }


def _checked(manifest: dict[str, Any]) -> dict[str, Any]:
    """Through the models and back: they drop what they do not know, and nothing may be dropped."""
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    checked: dict[str, Any] = TrainerV1alpha1TrainJob.from_dict(manifest).to_dict()
    assert checked == manifest, "the TrainJob models do not know a field of the manifest"
    return checked
