"""What a probe says: figures beside the catalogue's, slow ranks and links, and constants of the cost model.

A constant is what makes the cost model's own formula take as long as was measured. A value outside a
constant's bounds means another link or device than the catalogue's: an override is shown.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tools.errors import InputError
from tools.hardware import get_device
from tools.hardware.device import Device
from tools.model.calibration import shipped_calibration
from tools.model.constants import constant_priors
from tools.model.runs import Measured, Run
from tools.physics.encode import encode, scenario_device
from tools.physics.inputs import Coefficients, Inputs
from tools.physics.kernels import gemm_s
from tools.probe.measured import FORMAT, RESULT, Link, Probe, ProbeSettings, Product
from tools.scenario import Scenario, parse_scenario
from tools.scenario.fields import JsonObject, input_error

SLOW_RANK = 0.9
"""A rank below this share of the usual rate is named."""
SLOW_LINK, LATE_LINK = 0.8, 2.0
"""Share of the usual rate, and multiple of the usual latency, of links of the same kind."""
MIN_PRODUCT_FLOPS = 2.0**27
"""Smaller products are launches more than arithmetic."""
FAR = 1.25
"""Times off the catalogue: beyond, its figure is not this cluster's."""
NOMINAL_MODEL = {
    "name": "probe", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
CPU_PRODUCTS = ((256, 256, 256), (512, 512, 512), (1024, 512, 512), (512, 1024, 1024))
PRODUCTS = (
    *((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)),
    *((8192, 28672, 4096), (8192, 4096, 14336), (8192, 6144, 4096)),
)
"""Squares, and the products of a Llama of 8 billion parameters at 8,192 tokens."""
CPU_MAX_BYTES = 16 * 2**20
GBIT = 1e9 / 8
"""In bytes per second."""


@dataclass(frozen=True)
class Comparison:
    """A measured figure beside the catalogue's and beside what predictions assume."""

    name: str
    unit: str
    catalogue: float
    assumed: float
    """By the cost model: the catalogue's figure times the usual efficiency."""
    measured: float


@dataclass(frozen=True)
class SlowPart:
    """A slow rank or link."""

    what: str
    ratio: float
    """To the usual rate; for a latency, to the usual latency."""
    message: str


@dataclass(frozen=True)
class ProbeReport:
    probe: Probe
    comparisons: tuple[Comparison, ...]
    findings: tuple[SlowPart, ...]
    constants: dict[str, float]
    overrides: JsonObject
    """`cluster.overrides` for figures that are not the catalogue's at all."""
    run: Run
    """As a row for calibration."""


class _ConstantFigure(NamedTuple):
    """A constant as it was measured, how it is shown, and the override if the value is out of bounds."""

    name: str
    value: float
    shown: Comparison
    override: JsonObject | None = None


def settings_for(
    device: str, precisions: Sequence[str], seconds: float, anyway: bool = False
) -> ProbeSettings:
    try:
        known = get_device(device)
    except InputError as error:
        raise error.at("device") from None
    is_cpu = known.vendor == "cpu"
    usual = ("fp32",) if is_cpu else tuple(p for p in ("bf16", "fp8") if p in known.peak_flops)
    for precision in precisions:
        if precision not in known.peak_flops:
            allowed = f"{known.name} computes in {', '.join(known.peak_flops)}"
            raise InputError("precision", precision, allowed)
    return ProbeSettings(
        device=known.name,
        precisions=tuple(precisions) or usual,
        products=CPU_PRODUCTS if is_cpu else PRODUCTS,
        seconds=seconds,
        max_bytes=CPU_MAX_BYTES if is_cpu else ProbeSettings.max_bytes,
        anyway=anyway,
    )


def read_probe(folder: Path) -> Probe:
    """Raises InputError for a folder without one."""
    path = folder / RESULT
    try:
        probe = TypeAdapter(Probe).validate_json(path.read_bytes())
    except OSError as error:
        raise InputError("folder", str(path), f"{error.strerror}; give the folder of a probe") from None
    except ValidationError as error:
        fault = input_error(error)
        raise fault.at(f"{path.name}: {fault.path}") from None
    if probe.busy and not probe.ranks:
        rule = "nothing was measured: wait until the nodes are idle, or give --anyway"
        raise InputError("nodes", "; ".join(probe.busy), rule)
    if probe.format != FORMAT or not probe.ranks or len(probe.ranks) % probe.devices_per_node:
        raise InputError(f"{path.name}: format", probe.format, f"must be a probe of {FORMAT!r}")
    return probe


def report_of(probe: Probe, framework: str = "torch-fsdp2", cluster: str | None = None) -> ProbeReport:
    scenario = _nominal_scenario(probe, framework, cluster)
    x, keys = encode([scenario])
    device, usual = scenario_device(scenario.cluster), shipped_calibration().coefficients(keys)
    copied_rate = _usual([rank.copy_bytes_per_s for rank in probe.ranks])
    is_other_memory = not 1 / FAR < copied_rate / device.memory_bandwidth_bytes_per_s < FAR
    if is_other_memory:  # what a product waits for memory is as on these nodes, not as in the catalogue
        x = replace(x, memory_bandwidth=np.asarray(copied_rate))
    bounds = {prior.name: (prior.low, prior.high) for prior in constant_priors()}
    constants: dict[str, float] = {}
    overrides: JsonObject = {}
    rows = []
    for name, value, shown, override in _figures(probe, x, usual, device):
        rows.append(shown)
        if name in bounds and bounds[name][0] <= value <= bounds[name][1]:
            constants[name] = value
        else:
            overrides.update(override or {})
    memory_rate = device.memory_bandwidth_bytes_per_s / 1e9
    rows.append(Comparison("memory bandwidth", "GB/s", memory_rate, memory_rate, copied_rate / 1e9))
    if is_other_memory:
        overrides["memory_bandwidth_gbytes_per_s"] = round(copied_rate / 1e9, 3)
    findings = (*_slow_ranks(probe), *_slow_links(probe))
    measured = Measured(constants=constants)
    run = Run(scenario=scenario, measured=measured, id="probe", source="probe")
    return ProbeReport(probe, tuple(rows), findings, constants, overrides, run)


def _nominal_scenario(probe: Probe, framework: str, cluster: str | None) -> Scenario:
    """A job on the probe's devices: constants need a device and a framework to belong to."""
    devices = len(probe.ranks)
    return parse_scenario(
        {
            "model": NOMINAL_MODEL,
            "cluster": {
                **({"name": cluster} if cluster else {}),
                "device": probe.settings.device,
                "num_devices": devices,
                "devices_per_node": probe.devices_per_node,
            },
            "training": {
                "seq_len": 4096,
                "global_batch_size": devices,
                "precision": probe.settings.precisions[0],
                "framework": framework,
            },
            "plan": {
                "tp": 1,
                "pp": 1,
                "cp": 1,
                "dp": devices,
                "dp_shard": devices,
                "micro_batch_size": 1,
                "zero_stage": 3 if devices > 1 else 0,
            },
        }
    )


def _figures(probe: Probe, x: Inputs, usual: Coefficients, device: Device) -> Iterator[_ConstantFigure]:
    for number, precision in enumerate(probe.settings.precisions):
        if figure := _product_figure(probe, x, usual, precision, is_main=number == 0):
            yield figure
    fast, slow = float(usual.fast_link_efficiency), float(usual.slow_link_efficiency)
    if rate := _link_rate(probe, ("node", "tp")):
        name, catalogue = "link in the node, per device", device.intra_node_bytes_per_s
        shown = Comparison(name, "GB/s", catalogue / 1e9, catalogue * fast / 1e9, rate / 1e9)
        override: JsonObject = {"intra_node_gbytes_per_s_per_device": round(rate / fast / 1e9, 4)}
        yield _ConstantFigure("fast_link_efficiency", rate / float(x.scale_up_bandwidth), shown, override)
    if rate := _link_rate(probe, ("network",)):
        name, catalogue = "network, per device", device.inter_node_bytes_per_s
        shown = Comparison(name, "Gbit/s", catalogue / GBIT, catalogue * slow / GBIT, rate / GBIT)
        override = {"inter_node_gbps_per_device": round(rate * 8 / slow / 1e9, 4)}
        yield _ConstantFigure("slow_link_efficiency", rate / float(x.scale_out_bandwidth), shown, override)
    over = [c for c in probe.collectives if c.group in ("all", "network") and c.kind == "all_gather"]
    if over:
        # Latency per rank beyond the node: `gather_latency_s` solved for it, from the smallest gather.
        small = min(over, key=lambda c: (c.message_bytes, -c.size))
        inside = probe.devices_per_node if small.group == "all" else 1
        hop_s = (small.seconds - float(x.scale_up_latency) * (inside - 1)) / (small.size - inside)
        name, catalogue, assumed_s = (
            "latency of a rank beyond the node", float(x.scale_out_latency), float(usual.rank_latency_s),
        )  # fmt: skip
        shown = Comparison(name, "µs", catalogue * 1e6, assumed_s * 1e6, hop_s * 1e6)
        yield _ConstantFigure("rank_latency_s", hop_s, shown)
    launch_s, assumed_s = _usual([rank.launch_s for rank in probe.ranks], False), float(usual.host_kernel_s)
    shown = Comparison("host launch of a kernel", "µs", assumed_s * 1e6, assumed_s * 1e6, launch_s * 1e6)
    yield _ConstantFigure("host_kernel_s", launch_s, shown)


def _product_figure(
    probe: Probe, x: Inputs, usual: Coefficients, precision: str, is_main: bool
) -> _ConstantFigure | None:
    """`gemm_efficiency` from the run's own precision: the formula is A / efficiency + B, both known."""
    shapes: dict[tuple[int, int, int], list[Product]] = {}
    for product in probe.products:
        if product.precision == precision and _flops(product) >= MIN_PRODUCT_FLOPS:
            shapes.setdefault((product.m, product.n, product.k), []).append(product)
    peak = get_device(probe.settings.device).peak_flops.get(precision)
    if not shapes or peak is None:
        return None
    # Each shape as the usual rank computes it.
    products = [
        sorted(own, key=lambda p: p.seconds)[len(own) // 2 if len(own) > 2 else 0] for own in shapes.values()
    ]
    best, at = max(product.flops_per_s for product in products), float(usual.gemm_efficiency)
    shown = Comparison(f"products in {precision}", "TFLOP/s", peak / 1e12, peak * at / 1e12, best / 1e12)
    if not is_main:
        return _ConstantFigure("gemm_efficiency", 0.0, shown)
    fitted = []
    for product in products:
        m, n, k = (np.array([float(size)]) for size in (product.m, product.n, product.k))
        once_s, twice_s = (
            float(np.ravel(gemm_s(x, replace(usual, gemm_efficiency=np.asarray(share)), m, n, k))[0])
            for share in (at, 2 * at)
        )
        arithmetic_s = 2 * (once_s - twice_s)
        moving_s = once_s - arithmetic_s
        fitted.append(at * arithmetic_s / max(product.seconds - moving_s, 1e-12))
    value = statistics.median(fitted)
    override: JsonObject = {"peak_tflops": {precision: round(peak * value / at / 1e12, 4)}}
    return _ConstantFigure("gemm_efficiency", value, shown, override)


def _flops(product: Product) -> float:
    return 2.0 * product.m * product.n * product.k


def _link_rate(probe: Probe, groups: Sequence[str]) -> float | None:
    """Bytes per second of the largest messages over a group, by how much longer they take than the next."""
    rates = []
    for kind in ("all_gather", "all_reduce"):
        for group in groups:
            own = [c for c in probe.collectives if c.group == group and c.kind == kind]
            if len(own) > 1:
                less, more = sorted(own, key=lambda c: c.message_bytes)[-2:]
                # At least a share of the time: noise must not make the rate infinite.
                seconds = max(more.seconds - less.seconds, 0.05 * more.seconds)
                message_bytes = more.message_bytes - less.message_bytes
                rates.append(replace(more, message_bytes=message_bytes, seconds=seconds).bus_bytes_per_s)
                break
    return statistics.fmean(rates) if rates else None


def _usual(values: Sequence[float], more_is_better: bool = True) -> float:
    """The median; of two the better, so that one slow rank of two is not the usual one."""
    ordered = sorted(values, reverse=more_is_better)
    return ordered[(len(ordered) - 1) // 2]


def _slow_ranks(probe: Probe) -> Iterator[SlowPart]:
    """By products, over all shapes and precisions, and by copies."""
    rates: dict[int, list[float]] = {}
    by_case: dict[tuple[str, int, int, int], dict[int, float]] = {}
    for p in probe.products:
        if _flops(p) >= MIN_PRODUCT_FLOPS:
            by_case.setdefault((p.precision, p.m, p.n, p.k), {})[p.rank] = p.flops_per_s
    for case in by_case.values():
        usual = _usual(list(case.values()))
        for rank, rate in case.items():
            rates.setdefault(rank, []).append(rate / usual)
    copies = {rank.rank: rank.copy_bytes_per_s for rank in probe.ranks}
    for what, ratios in (
        ("computes", {rank: statistics.median(own) for rank, own in rates.items()}),
        ("copies memory", {rank: rate / _usual(list(copies.values())) for rank, rate in copies.items()}),
    ):
        for rank, ratio in ratios.items():
            if ratio < SLOW_RANK:
                host = probe.ranks[rank].host
                message = f"rank {rank} on {host} {what} at {ratio:.0%} of the usual rate"
                yield SlowPart(f"rank {rank}", ratio, message)


def _slow_links(probe: Probe) -> Iterator[SlowPart]:
    for crosses in (False, True):
        links = [link for link in probe.links if link.crosses == crosses]
        if len(links) < 2:
            continue
        rate = _usual([link.bytes_per_s for link in links])
        latency_s = _usual([link.latency_s for link in links], more_is_better=False)
        for link in links:
            name = link_name(probe, link)
            if link.bytes_per_s < SLOW_LINK * rate:
                ratio = link.bytes_per_s / rate
                yield SlowPart(name, ratio, f"{name} carries {ratio:.0%} of what similar links do")
            elif link.latency_s > LATE_LINK * latency_s:
                ratio = link.latency_s / latency_s
                yield SlowPart(name, ratio, f"{name} takes {ratio:.1f} times as long for a small message")


def link_name(probe: Probe, link: Link) -> str:
    first, second = (probe.ranks[rank].host for rank in (link.first, link.second))
    return f"{first} to {second}" if link.crosses else f"rank {link.first} to {link.second} on {first}"
