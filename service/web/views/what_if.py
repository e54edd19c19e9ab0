"""The controls of the what-if page: what may be moved, between which values, and where each stands."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tools.cost.memory import GIB
from tools.hardware import Device, get_device
from tools.scenario import RECOMPUTES, Scenario

STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
MEMORY_STEPS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0)
CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
MOST_TENSOR = 64
MOST_STAGES = 64
MOST_CONTEXT = 64


@dataclass(frozen=True)
class Control:
    name: str
    label: str
    options: list[tuple[str, str]]
    """Value and text, in order."""
    chosen: str
    start: str
    is_slider: bool = True


def controls_of(scenario: Scenario, given: Mapping[str, str]) -> dict[str, list[Control]]:
    """By heading."""
    found = {
        "Cluster": _cluster(scenario),
        "Training": _training(scenario),
        "Plan": _plan(scenario),
    }
    return {name: [_standing(one, given) for one in controls] for name, controls in found.items()}


def _standing(control: Control, given: Mapping[str, str]) -> Control:
    value = given.get(control.name) or control.start
    known = [option for option, _ in control.options]
    return replace(control, chosen=value if value in known else control.start)


def _cluster(scenario: Scenario) -> list[Control]:
    cluster = scenario.cluster
    device: Device = get_device(cluster.device, cluster.overrides)
    rates = {"intra": device.intra_node_bytes_per_s, "inter": device.inter_node_bytes_per_s}
    labels = {"intra": "Link inside the node", "inter": "Link between nodes"}
    links = [
        Control(name, labels[name], [(f"{f:g}", f"{rate * f / 1e9:,.4g} GB/s") for f in STEPS], "", "1")
        for name, rate in rates.items()
    ]
    memory = [(f"{f:g}", f"{device.memory_bytes * f / GIB:.1f} GiB") for f in MEMORY_STEPS]
    devices = _around(cluster.num_devices, 4)
    return [
        _numbers("num_devices", "Devices", devices, cluster.num_devices),
        *links,
        Control("memory", "Memory a device", memory, "", "1"),
    ]


def _training(scenario: Scenario) -> list[Control]:
    training = scenario.training
    return [
        _numbers(
            "global_batch_size",
            "Global batch",
            _around(training.global_batch_size, 4),
            training.global_batch_size,
        ),
        _numbers("seq_len", "Sequence length", _around(training.seq_len, 4), training.seq_len),
    ]


def _plan(scenario: Scenario) -> list[Control]:
    plan, model = scenario.plan, scenario.model
    if plan is None:
        return []
    devices = scenario.cluster.num_devices * 16
    found = [
        _numbers("tp", "Tensor parallel", _powers(min(MOST_TENSOR, devices)), plan.tp),
        _numbers("pp", "Pipeline stages", _powers(min(MOST_STAGES, model.num_hidden_layers)), plan.pp),
        _numbers("vpp", "Chunks a stage", CHUNKS, plan.vpp),
        _numbers("cp", "Context parallel", _powers(min(MOST_CONTEXT, devices)), plan.cp),
    ]
    if model.is_moe:
        found.append(_numbers("ep", "Expert parallel", _powers(model.num_experts), plan.ep))
    found += [
        _numbers("micro_batch_size", "Micro-batch", _powers(16), plan.micro_batch_size),
        _numbers("zero_stage", "ZeRO stage", range(4), plan.zero_stage),
        _choice("recompute", "Recompute", list(RECOMPUTES), plan.recompute or "none"),
        _choice(
            "sequence_parallel", "Sequence parallel", ["true", "false"], str(plan.sequence_parallel).lower()
        ),
    ]
    return found


def _numbers(name: str, label: str, values: Iterable[int], start: int) -> Control:
    options = [(str(value), f"{value:,}") for value in sorted({*values, start})]
    return Control(name, label, options, "", str(start))


def _choice(name: str, label: str, values: list[str], start: str) -> Control:
    shown = {"true": "yes", "false": "no"}
    return Control(
        name, label, [(value, shown.get(value, value)) for value in values], "", start, is_slider=False
    )


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _around(value: int, steps: int) -> list[int]:
    """The value halved and doubled so often, where it can be halved."""
    halves = [value // 2**step for step in range(1, steps + 1) if value % 2**step == 0]
    return sorted([*halves, value, *(value * 2**step for step in range(1, steps + 1))])
