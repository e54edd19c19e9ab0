"""From an order to a launcher's job: the plan in the scenario, and in its framework's own format if asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.errors import InputError
from tools.export import export_plan
from tools.launch.command import placeholder_of
from tools.launch.job import ConfigFile, Job
from tools.launch.template import Template
from tools.scenario import Scenario, parse_scenario

DESCRIBED = ("model", "cluster", "training")
SECONDS_AN_HOUR = 3600
EXPORTS = {
    "torchtitan": "torchtitan",
    "megatron-core": "megatron",
    "deepspeed": "deepspeed",
    "maxtext": "maxtext",
    "torch-fsdp": "accelerate",
    "torch-fsdp2": "accelerate",
}
"""Which of the exports a framework reads, for templates with {config}."""


@dataclass(frozen=True)
class RunLength:
    """Of every run of an installation's trials, so that all are comparable."""

    steps: int = 20
    warmup: int = 3
    profile_steps: int = 2
    seed: int = 0


def make_job(
    template: Template, scenario: Mapping[str, Any], plan: Mapping[str, Any], length: RunLength, wall_s: int
) -> Job:
    described = {name: scenario[name] for name in DESCRIBED} | {"plan": dict(plan)}
    parsed = parse_scenario(described)
    nnodes, nproc = ranks_of(template, parsed)
    return Job(
        template=template.name,
        scenario=described,
        nnodes=nnodes,
        nproc=nproc,
        steps=length.steps,
        warmup=length.warmup,
        profile_steps=length.profile_steps,
        seed=length.seed,
        wall_s=wall_s,
        config=_config(template, parsed),
    )


def ranks_of(template: Template, scenario: Scenario) -> tuple[int, int]:
    """(nodes, processes on each); on this machine all ranks share one node, whatever the scenario models."""
    cluster = scenario.cluster
    if template.launcher == "local" or cluster.num_devices <= cluster.devices_per_node:
        return 1, cluster.num_devices
    if cluster.num_devices % cluster.devices_per_node:
        allowed = f"must be a multiple of devices_per_node ({cluster.devices_per_node}): nodes run equal jobs"
        raise InputError("cluster.num_devices", cluster.num_devices, allowed)
    return cluster.num_devices // cluster.devices_per_node, cluster.devices_per_node


def check_cluster(template: Template, scenario: Scenario) -> None:
    """Raises InputError where the template cannot run so many ranks."""
    nnodes, _ = ranks_of(template, scenario)
    limits, devices = template.limits, scenario.cluster.num_devices
    if devices > limits.devices:
        allowed = f"the launch template {template.name} runs at most {limits.devices} ranks"
        raise InputError("cluster.num_devices", devices, allowed)
    if nnodes > limits.nodes:
        allowed = f"that is {nnodes} nodes; the launch template {template.name} runs at most {limits.nodes}"
        raise InputError("cluster.num_devices", devices, allowed)


def _config(template: Template, scenario: Scenario) -> ConfigFile | None:
    if "config" not in map(placeholder_of, template.command):
        return None
    framework = scenario.training.framework
    if framework not in EXPORTS:
        allowed = f"the template {template.name} needs an exported plan: {', '.join(EXPORTS)}"
        raise InputError("training.framework", framework, allowed)
    export = export_plan(scenario, EXPORTS[framework])
    return ConfigFile(export.file_name, export.text)
