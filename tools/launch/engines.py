"""Opens the launcher of an engine."""

from collections.abc import Mapping
from pathlib import Path

from tools.errors import InputError
from tools.launch.launcher import Launcher
from tools.launch.local import LocalLauncher
from tools.launch.slurm import SlurmLauncher
from tools.launch.template import Template


def open_launcher(
    name: str,
    root: Path,
    templates: Mapping[str, Template],
    environment: Mapping[str, str],
    kubeconfig: Path | None = None,
    kube_context: str | None = None,
) -> Launcher:
    """`root` has a folder per job: on Slurm seen by the nodes too, on Kubernetes the mount of the claim.

    Of the service's `environment` local jobs inherit what their template names, and Slurm's commands see PATH
    and SLURM_CONF. Without a kubeconfig Kubernetes is the cluster that the service runs in.
    """
    if name == "local":
        return LocalLauncher(root, templates, environment)
    if name == "slurm":
        seen = {key: environment[key] for key in ("PATH", "SLURM_CONF") if key in environment}
        return SlurmLauncher(root, templates, seen)
    try:
        import kubeflow_trainer_api  # noqa: F401

        from tools.launch.kubernetes import KubernetesLauncher, open_cluster
    except ImportError as error:
        allowed = "needs the extra 'kubernetes': pip install 'asap-sharding[kubernetes]'"
        raise InputError("template.launcher", "kubernetes", f"{allowed} ({error.name} is missing)") from None
    return KubernetesLauncher(root, templates, open_cluster(kubeconfig, kube_context))
