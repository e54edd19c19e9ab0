"""Which engines are opened."""

import sys
from pathlib import Path

import pytest

from tools.errors import InputError
from tools.launch.launcher import Launcher, LaunchSettings, open_launchers
from tools.launch.status import LaunchError
from tools.launch.template import parse_templates, read_templates

REPO = Path(__file__).resolve().parents[3]
EXAMPLES = read_templates(REPO / "examples/launch-templates.toml")
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""


def settings(tmp_path: Path, kubeconfig: Path | None = None) -> LaunchSettings:
    return LaunchSettings(tmp_path, {"PATH": "/usr/bin"}, kubeconfig)


def test_only_the_engines_that_templates_name_are_opened(tmp_path: Path) -> None:
    chosen = {name: template for name, template in EXAMPLES.items() if template.launcher != "kubernetes"}
    opened: dict[str, Launcher] = open_launchers(chosen, settings(tmp_path))
    assert {name: launcher.name for name, launcher in opened.items()} == {"local": "local", "slurm": "slurm"}
    assert open_launchers({}, settings(tmp_path)) == {}


def test_kubernetes_is_opened_by_its_kubeconfig(tmp_path: Path) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
    (tmp_path / "config").write_text(KUBECONFIG)
    opened = open_launchers(EXAMPLES, settings(tmp_path, tmp_path / "config"))
    assert opened["kubernetes"].name == "kubernetes"


def test_without_a_cluster_kubernetes_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
    with pytest.raises(LaunchError, match="no Kubernetes cluster"):
        open_launchers(EXAMPLES, settings(tmp_path, tmp_path / "none"))


def test_without_its_packages_kubernetes_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubeflow_trainer_api", None)
    with pytest.raises(InputError, match="asap-sharding\\[kubernetes\\]"):
        open_launchers(EXAMPLES, settings(tmp_path))


def test_a_slurm_that_is_not_installed_is_told(tmp_path: Path) -> None:
    from tools.launch.job import Job

    table = {"name": "s", "launcher": "slurm", "command": ["run"], "limits": {"wall_s": 60}}
    templates = parse_templates({"template": [table]})
    launcher = open_launchers(templates, LaunchSettings(tmp_path, {"PATH": str(tmp_path)}))["slurm"]
    with pytest.raises(LaunchError, match="squeue is not installed"):
        launcher.submit("k1", Job("s", {}))
