"""Which engines are opened."""

import sys
from pathlib import Path

import pytest

from tests.unit.launch.builders import EXAMPLES, templates
from tools.errors import InputError
from tools.launch.launcher import Job, Launcher, LaunchSettings, open_launchers
from tools.launch.status import LaunchError
from tools.launch.template import read_templates

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""


def open_examples(root: Path, *engines: str, kubeconfig: Path | None = None) -> dict[str, Launcher]:
    """The launchers of the examples' templates for these engines."""
    chosen = {name: item for name, item in read_templates(EXAMPLES).items() if item.launcher in engines}
    return open_launchers(chosen, LaunchSettings(root, {"PATH": "/usr/bin"}, kubeconfig))


@pytest.mark.parametrize("engines", [(), ("local",), ("local", "slurm")])
def test_only_the_engines_that_templates_name_are_opened(tmp_path: Path, engines: tuple[str, ...]) -> None:
    opened = open_examples(tmp_path, *engines)
    assert {name: launcher.name for name, launcher in opened.items()} == {name: name for name in engines}


def test_kubernetes_is_opened_by_its_kubeconfig(tmp_path: Path) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
    path = tmp_path / "config"
    with pytest.raises(LaunchError, match="no Kubernetes cluster"):
        open_examples(tmp_path, "kubernetes", kubeconfig=path)
    path.write_text(KUBECONFIG)
    assert open_examples(tmp_path, "kubernetes", kubeconfig=path)["kubernetes"].name == "kubernetes"


def test_without_its_packages_kubernetes_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubeflow_trainer_api", None)
    with pytest.raises(InputError, match="asap-sharding\\[kubernetes\\]"):
        open_examples(tmp_path, "kubernetes")


def test_a_slurm_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    settings = LaunchSettings(tmp_path, {"PATH": str(tmp_path)})
    launcher = open_launchers(templates("slurm"), settings)["slurm"]
    with pytest.raises(LaunchError, match="squeue is not installed"):
        launcher.submit("k1", Job("test", {}))
