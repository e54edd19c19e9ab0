"""What a probe says: figures beside the catalogue's, slow ranks and links, and constants of the cost model.

A constant is what makes the cost model's own formula take as long as was measured. What lies outside a
constant's bounds is no efficiency any more but another link or device: an override of the catalogue is shown.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tools.calibrate.runs import Measured, Run
from tools.cost.calibration import shipped_calibration
from tools.cost.constants import Coefficients, definitions
from tools.cost.encode import encode, scenario_device
from tools.cost.inputs import Inputs
from tools.cost.kernels import gemm_s
from tools.errors import InputError
from tools.hardware import get_device
from tools.probe.measured import FORMAT, RESULT, Collective, Link, Probe, ProbeSettings, Product
from tools.scenario import Scenario, parse_scenario
from tools.scenario.fields import JsonObject

SLOW_RANK = 0.9
"""Of the usual rate: below, a rank is named."""
SLOW_LINK, LATE_LINK = 0.8, 2.0
"""Of the usual rate, and times the usual latency, of links of the same kind."""
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
class Finding:
    """A slow rank or link."""

    what: str
    ratio: float
    """Of the usual rate; for a latency, of the usual latency."""
    says: str


@dataclass(frozen=True)
class ProbeReport:
    probe: Probe
    comparisons: tuple[Comparison, ...]
    findings: tuple[Finding, ...]
    constants: dict[str, float]
    overrides: JsonObject
    """`cluster.overrides` for figures that are not the catalogue's at all."""
    run: Run
    """As a row for calibration."""

    def to_data(self) -> JsonObject:
        shown = asdict(replace(self, run=None)) | {"run": self.run.to_data()}  # type: ignore[arg-type]
        data: JsonObject = json.loads(json.dumps(shown))
        return data


def settings_for(device: str, precisions: Sequence[str], seconds: float) -> ProbeSettings:
    try:
        known = get_device(device)
    except InputError as error:
        raise InputError("--device", error.given, error.allowed) from None
    is_cpu = known.vendor == "cpu"
    usual = ("fp32",) if is_cpu else tuple(p for p in ("bf16", "fp8") if p in known.peak_flops)
    for precision in precisions:
        if precision not in known.peak_flops:
            allowed = f"{known.name} computes in {', '.join(known.peak_flops)}"
            raise InputError("--precision", precision, allowed)
    return ProbeSettings(
        device=known.name,
        precisions=tuple(precisions) or usual,
        products=CPU_PRODUCTS if is_cpu else PRODUCTS,
        seconds=seconds,
        max_bytes=CPU_MAX_BYTES if is_cpu else ProbeSettings.max_bytes,
    )


def read_probe(folder: Path) -> Probe:
    """Raises InputError for a folder without one."""
    path = folder / RESULT
    try:
        probe = TypeAdapter(Probe).validate_json(path.read_bytes())
    except OSError as error:
        raise InputError("DIR", str(path), f"{error.strerror}; give the folder of a probe") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path.name}: {place}", str(first["input"])[:80], first["msg"]) from None
    if probe.format != FORMAT or not probe.ranks or len(probe.ranks) % probe.devices_per_node:
        raise InputError(f"{path.name}: format", probe.format, f"must be a probe of {FORMAT!r}")
    return probe


def report_of(probe: Probe, framework: str = "torch-fsdp2", cluster: str | None = None) -> ProbeReport:
    scenario = _scenario(probe, framework, cluster)
    x, keys = encode([scenario])
    usual = shipped_calibration().coefficients(keys)
    device = scenario_device(scenario.cluster)
    constants, overrides, rows = {}, {}, []
    for name, value, comparison, override in _figures(probe, x, usual, scenario):
        if comparison:
            rows.append(comparison)
        bounds = {d.name: (d.low, d.high) for d in definitions()}.get(name)
        if bounds and bounds[0] <= value <= bounds[1]:
            constants[name] = value
        elif override:
            overrides.update(override)
    copied = _usual([rank.copy_bytes_per_s for rank in probe.ranks])
    memory_rate = device.memory_bandwidth_bytes_per_s
    rows.append(Comparison("memory bandwidth", "GB/s", memory_rate / 1e9, memory_rate / 1e9, copied / 1e9))
    if not 1 / FAR < copied / memory_rate < FAR:
        overrides["memory_bandwidth_gbytes_per_s"] = round(copied / 1e9, 3)
    findings = (*_slow_ranks(probe), *_slow_links(probe))
    run = Run(scenario, Measured(constants=constants), id="probe", source="probe")
    return ProbeReport(probe, tuple(rows), findings, constants, overrides, run)


def _scenario(probe: Probe, framework: str, cluster: str | None) -> Scenario:
    """A nominal job on the probe's devices: constants need a device and a framework to belong to."""
    devices = len(probe.ranks)
    precision = probe.settings.precisions[0]
    named = {"name": cluster} if cluster else {}
    return parse_scenario(
        {
            "model": NOMINAL_MODEL,
            "cluster": {
                **named,
                "device": probe.settings.device,
                "num_devices": devices,
                "devices_per_node": probe.devices_per_node,
            },
            "training": {
                "seq_len": 4096,
                "global_batch_size": devices,
                "precision": precision,
                "framework": framework,
            },
            "plan": {
                "tp": 1,
                "pp": 1,
                "cp": 1,
                "dp": devices,
                "dp_shard": devices,
                "zero_stage": 3 if devices > 1 else 0,
                "micro_batch_size": 1,
            },
        }
    )


Figure = tuple[str, float, Comparison | None, JsonObject]
"""Name of the constant, its value, how it is shown, and the override if the value is out of bounds."""


def _figures(probe: Probe, x: Inputs, usual: Coefficients, scenario: Scenario) -> Iterator[Figure]:
    yield from _product_figures(probe, x, usual)
    device = scenario_device(scenario.cluster)
    if rate := _link_rate(probe, ("node", "tp")):
        share = rate / float(x.scale_up_bandwidth)
        efficiency = float(usual.fast_link_efficiency)
        shown = _compared(
            "link in the node, per device", device.intra_node_bytes_per_s, efficiency, rate, "GB/s", 1e9
        )
        yield (
            "fast_link_efficiency",
            share,
            shown,
            {"intra_node_gbytes_per_s_per_device": round(rate / efficiency / 1e9, 4)},
        )
    if rate := _link_rate(probe, ("network",)):
        share = rate / float(x.scale_out_bandwidth)
        efficiency = float(usual.slow_link_efficiency)
        shown = _compared(
            "network, per device", device.inter_node_bytes_per_s, efficiency, rate, "Gbit/s", 1e9 / 8
        )
        yield (
            "slow_link_efficiency",
            share,
            shown,
            {"inter_node_gbps_per_device": round(rate * 8 / efficiency / 1e9, 4)},
        )
    yield from _latencies(probe, x, usual)
    launch_s, assumed_s = _usual([rank.launch_s for rank in probe.ranks], False), float(usual.host_kernel_s)
    shown = Comparison("host launch of a kernel", "µs", assumed_s * 1e6, assumed_s * 1e6, launch_s * 1e6)
    yield "host_kernel_s", launch_s, shown, {}


def _compared(
    name: str, catalogue: float, efficiency: float, measured: float, unit: str, scale: float
) -> Comparison:
    return Comparison(name, unit, catalogue / scale, catalogue * efficiency / scale, measured / scale)


def _product_figures(probe: Probe, x: Inputs, usual: Coefficients) -> Iterator[Figure]:
    """`gemm_efficiency` from the run's own precision: the formula is A / efficiency + B, both known."""
    peaks, efficiency = get_device(probe.settings.device).peak_flops, float(usual.gemm_efficiency)
    for number, precision in enumerate(probe.settings.precisions):
        shapes = [p for p in _by_shape(probe.products, precision) if _flops(p) >= MIN_PRODUCT_FLOPS]
        if not shapes or precision not in peaks:
            continue
        best = max(product.flops_per_s for product in shapes)
        shown = _compared(f"products in {precision}", peaks[precision], efficiency, best, "TFLOP/s", 1e12)
        fitted = [_efficiency(x, usual, product) for product in shapes]
        value = statistics.median(fitted) if number == 0 else 0.0
        override: JsonObject = {}
        if number == 0:
            peak = peaks[precision] * value / efficiency / 1e12
            override = {"peak_tflops": {precision: round(peak, 4)}}
        yield "gemm_efficiency", value, shown, override


def _efficiency(x: Inputs, usual: Coefficients, product: Product) -> float:
    m, n, k = (np.array([float(size)]) for size in (product.m, product.n, product.k))
    at = float(usual.gemm_efficiency)
    once_s, twice_s = (
        float(np.ravel(gemm_s(x, replace(usual, gemm_efficiency=np.asarray(share)), m, n, k))[0])
        for share in (at, 2 * at)
    )
    arithmetic_s = 2 * (once_s - twice_s)
    moving_s = once_s - arithmetic_s
    return at * arithmetic_s / max(product.seconds - moving_s, 1e-12)


def _flops(product: Product) -> float:
    return 2.0 * product.m * product.n * product.k


def _by_shape(products: Sequence[Product], precision: str) -> list[Product]:
    """Each shape as the usual rank computes it."""
    shapes: dict[tuple[int, int, int], list[Product]] = {}
    for product in products:
        if product.precision == precision:
            shapes.setdefault((product.m, product.n, product.k), []).append(product)
    return [
        sorted(own, key=lambda p: p.seconds)[len(own) // 2 if len(own) > 2 else 0] for own in shapes.values()
    ]


def _link_rate(probe: Probe, groups: Sequence[str]) -> float | None:
    """Bytes per second of the largest messages over a group, by how much longer they take than the next."""
    rates = []
    for kind in ("all_gather", "all_reduce"):
        for group in groups:
            own = [c for c in probe.collectives if c.group == group and c.kind == kind]
            if len(own) > 1:
                rates.append(_rate(*sorted(own, key=_size)[-2:]))
                break
    return statistics.fmean(rates) if rates else None


def _size(collective: Collective) -> int:
    return collective.message_bytes


def _rate(less: Collective, more: Collective) -> float:
    seconds = max(more.seconds - less.seconds, 0.05 * more.seconds)  # noise must not make it infinite
    further = replace(more, message_bytes=more.message_bytes - less.message_bytes, seconds=seconds)
    return further.bus_bytes_per_s


def _latencies(probe: Probe, x: Inputs, usual: Coefficients) -> Iterator[Figure]:
    """Of each rank beyond the node, from the smallest gather over all (`gather_latency_s` solved for it)."""
    over = [c for c in probe.collectives if c.group in ("all", "network") and c.kind == "all_gather"]
    if over:
        small = min(over, key=lambda c: (_size(c), -c.size))
        inside = probe.devices_per_node if small.group == "all" else 1
        hop_s = (small.seconds - float(x.scale_up_latency) * (inside - 1)) / (small.size - inside)
        shown = Comparison(
            "latency of a rank beyond the node",
            "µs",
            float(x.scale_out_latency) * 1e6,
            float(usual.rank_latency_s) * 1e6,
            hop_s * 1e6,
        )
        yield "rank_latency_s", hop_s, shown, {}


def _usual(values: Sequence[float], more_is_better: bool = True) -> float:
    """The median; of two the better, so that one slow rank of two is not the usual one."""
    ordered = sorted(values, reverse=more_is_better)
    return ordered[(len(ordered) - 1) // 2]


def _slow_ranks(probe: Probe) -> Iterator[Finding]:
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
                says = f"rank {rank} on {host} {what} at {ratio:.0%} of the usual rate"
                yield Finding(f"rank {rank}", ratio, says)


def _slow_links(probe: Probe) -> Iterator[Finding]:
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
                yield Finding(name, ratio, f"{name} carries {ratio:.0%} of what its like do")
            elif link.latency_s > LATE_LINK * latency_s:
                ratio = link.latency_s / latency_s
                yield Finding(name, ratio, f"{name} takes {ratio:.1f} times as long for a small message")


def link_name(probe: Probe, link: Link) -> str:
    first, second = (probe.ranks[rank].host for rank in (link.first, link.second))
    return f"{first} to {second}" if link.crosses else f"rank {link.first} to {link.second} on {first}"
