"""Checks a node before a job runs: clocks, power caps, memory errors, links, cards, CPU, NCCL settings.

The host is read from /sys and /proc; devices and cards from what their own tools print. The commands are the
ones listed here, without anything that a user says.
"""

import csv
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Literal, cast

import kb_seed
from tools.scenario.spec import ClosedModel

Part = Literal["compute", "links", "network", "host", "crash"]
GPU_FIELDS = (
    *("index", "name", "clocks.sm", "clocks.max.sm", "power.limit", "power.default_limit", "temperature.gpu"),
    *("clocks_throttle_reasons.active", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total"),
    *("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"),
    *("mig.mode.current", "utilization.gpu", "driver_version"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "nvidia-smi.csv": ("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"),
    "nvlink.txt": ("nvidia-smi", "nvlink", "--status"),
    "rocm-smi.json": ("rocm-smi", "--showclocks", "--showmaxpower", "--showrasinfo", "all", "--json"),
    "ibstat.txt": ("ibstat",),
}
"""By the name of the file that may stand for the command's output."""
TIMEOUT_S = 20
MAX_OUTPUT = 4 << 20
BUSY = 0.5
"""A device below this share of its clock is only judged if it works: idle ones clock down by themselves."""
LOW_CLOCK = 0.95
LOW_POWER = 0.97
POWER_EXPONENT = 1 / 3
"""Dynamic power grows with frequency times voltage squared, so about with the cube of the clock."""
_IB_PORT = re.compile(
    r"CA '(?P<card>[^']+)'|Port (?P<port>\d+):|^\s*(?P<key>State|Physical state|Rate): *(?P<value>.+?)\s*$"
)
_NVLINK = re.compile(r"^GPU (?P<gpu>\d+):|Link (?P<link>\d+): *(?P<state>.+?)\s*$")


@dataclass(frozen=True)
class PreflightFinding:
    where: str
    found: str
    expected: str
    part: Part
    """What it slows."""
    cost: str
    ratio: float | None = None
    """How many times as long that part takes at most; None if nobody can say beforehand."""

    def __str__(self) -> str:
        times = f" (up to {self.ratio:.2f} times as long)" if self.ratio else ""
        return f"{self.where}: {self.found}, expected {self.expected}; {self.part}{times}: {self.cost}"


@dataclass
class Preflight:
    findings: list[PreflightFinding] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Tools that this machine does not have, or that failed."""
    facts: dict[str, str] = field(default_factory=dict)
    """Versions, cores, NUMA nodes, devices."""


class PreflightRules(ClosedModel):
    packages: list[str]
    throttles: dict[str, str]
    variables: list[dict[str, str]]


@cache
def _rules() -> PreflightRules:
    return PreflightRules(**tomllib.loads(kb_seed.folder("preflight.toml").read_text()))


def run_command(name: str) -> str | None:
    """What one of COMMANDS prints; None if it is not here or fails."""
    try:
        done = subprocess.run(COMMANDS[name], capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:MAX_OUTPUT].decode("utf-8", "replace") if done.returncode == 0 else None


def preflight(
    environ: Mapping[str, str], output: Callable[[str], str | None] = run_command, root: Path = Path("/")
) -> Preflight:
    """Everything that can be read here; `output` gives what a command printed."""
    report = Preflight(read=["/sys and /proc", "variables of NCCL, CUDA and PyTorch"])
    readers: dict[str, Callable[[str, Preflight], Iterable[PreflightFinding]]] = {
        "nvidia-smi.csv": _nvidia,
        "nvlink.txt": _nvlink,
        "rocm-smi.json": _rocm,
        "ibstat.txt": _cards,
    }
    for name, reader in readers.items():
        text = output(name)
        (report.absent if text is None else report.read).append(
            " ".join(COMMANDS[name][:2]).partition(" --")[0]
        )
        if text is not None:
            report.findings += reader(text, report)
    report.findings += _host(root, report)
    report.findings += _variables(environ)
    for package in _rules().packages:
        try:
            report.facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return report


def _nvidia(text: str, report: Preflight) -> Iterator[PreflightFinding]:
    rows = [
        dict(zip(GPU_FIELDS, (cell.strip() for cell in row), strict=False))
        for row in csv.reader(text.splitlines())
        if len(row) == len(GPU_FIELDS)
    ]
    if rows:
        report.facts |= {"devices": f"{len(rows)} x {rows[0]['name']}", "driver": rows[0]["driver_version"]}
    clocks = [clock for row in rows if (clock := _number(row["clocks.sm"]))]
    for row in rows:
        where = f"device {row['index']}"
        clock, top = _number(row["clocks.sm"]), _number(row["clocks.max.sm"])
        works = (_number(row["utilization.gpu"]) or 0) / 100 > BUSY
        reasons = [
            name
            for bit, name in _rules().throttles.items()
            if _hexadecimal(row["clocks_throttle_reasons.active"]) & int(bit, 16)
        ]
        if clock and top and reasons:
            yield PreflightFinding(
                where, f"{clock:.0f} MHz, held down by {' and '.join(reasons)}", f"{top:.0f} MHz", "compute",
                "matrix products follow the clock, and all ranks wait for the slowest", top / clock,
            )  # fmt: skip
        elif clock and works and clock < LOW_CLOCK * median(clocks):
            yield PreflightFinding(
                where, f"{clock:.0f} MHz", f"{median(clocks):.0f} MHz as the others have", "compute",
                "all ranks wait for the slowest", median(clocks) / clock,
            )  # fmt: skip
        limit, usual = _number(row["power.limit"]), _number(row["power.default_limit"])
        if limit and usual and limit < LOW_POWER * usual:
            yield PreflightFinding(
                where, f"a power limit of {limit:.0f} W", f"{usual:.0f} W", "compute",
                "under load the clock falls until the power fits", (usual / limit) ** POWER_EXPONENT,
            )  # fmt: skip
        if (errors := _number(row["ecc.errors.uncorrected.volatile.total"])) and errors > 0:
            yield PreflightFinding(
                where, f"{errors:.0f} uncorrected memory errors", "0", "crash",
                "a job on it ends at the next one: take the device out and reset it",
            )  # fmt: skip
        if row["ecc.mode.current"] == "Disabled":
            yield PreflightFinding(
                where,
                "ECC off",
                "on",
                "crash",
                "errors go unnoticed; with HBM it costs no bandwidth to turn it on",
            )
        if row["mig.mode.current"] == "Enabled":
            yield PreflightFinding(
                where, "MIG on", "off", "compute", "a job sees slices of the device, without peer access"
            )
        for what, unit in (("gen", "PCIe generation"), ("width", "PCIe lanes")):
            now, most = _number(row[f"pcie.link.{what}.current"]), _number(row[f"pcie.link.{what}.max"])
            if now and most and now < most and (what == "width" or works):
                ratio = most / now if what == "width" else 2.0 ** (most - now)
                yield PreflightFinding(
                    where, f"{unit} {now:.0f}", f"{most:.0f}", "network",
                    "host copies, and messages of the network card beside it, share what is left", ratio,
                )  # fmt: skip


def _nvlink(text: str, report: Preflight) -> Iterator[PreflightFinding]:
    links: dict[str, list[bool]] = {}
    gpu = ""
    for line in text.splitlines():
        if match := _NVLINK.search(line):
            if match["gpu"]:
                gpu = match["gpu"]
            else:
                links.setdefault(gpu, []).append("inactive" not in match["state"].lower())
    most = max((sum(states) for states in links.values()), default=0)
    for gpu, states in links.items():
        up, known = sum(states), max(most, len(states))
        if up < known:
            yield PreflightFinding(
                f"device {gpu}", f"{up} of {known} NVLinks up", f"{known}", "links",
                "a ring is as fast as its slowest link", known / up if up else None,
            )  # fmt: skip


def _rocm(text: str, report: Preflight) -> Iterator[PreflightFinding]:
    try:
        cards = json.loads(text)
    except ValueError:
        report.absent.append("rocm-smi (its output is not JSON)")
        return
    stated = cards.items() if isinstance(cards, dict) else ()
    cards = {name: card for name, card in stated if name.startswith("card") and isinstance(card, dict)}
    report.facts |= {"devices": f"{len(cards)} AMD"} if cards else {}
    limits = {name: _number(card.get("Max Graphics Package Power (W)", "")) for name, card in cards.items()}
    highest = max((limit for limit in limits.values() if limit), default=0.0)
    for name, card in cards.items():
        limit = limits[name]
        if limit and limit < LOW_POWER * highest:
            yield PreflightFinding(
                name, f"a power limit of {limit:.0f} W", f"{highest:.0f} W as others have", "compute",
                "under load the clock falls until the power fits", (highest / limit) ** POWER_EXPONENT,
            )  # fmt: skip
        errors = sum(
            int(value) for key, value in card.items() if "UE" in key.upper().split() and str(value).isdigit()
        )
        if errors:
            yield PreflightFinding(
                name, f"{errors} uncorrected memory errors", "0", "crash", "a job on it ends at the next one"
            )


def _cards(text: str, report: Preflight) -> Iterator[PreflightFinding]:
    ports: dict[str, dict[str, str]] = {}
    card = place = ""
    for line in text.splitlines():
        if match := _IB_PORT.search(line):
            if match["card"]:
                card = match["card"]
            elif match["port"]:
                place = f"{card} port {match['port']}"
                ports[place] = {}
            elif place:
                ports[place][match["key"]] = match["value"]
    rates = {name: _number(port.get("Rate", "")) or 0.0 for name, port in ports.items()}
    usual = median(rates.values()) if rates else 0.0
    report.facts |= {"cards": f"{len(ports)} ports, {usual:.0f} Gb/s"} if ports else {}
    for name, port in ports.items():
        if port.get("State") != "Active" or port.get("Physical state") != "LinkUp":
            state = f"{port.get('State', '?')}, {port.get('Physical state', '?')}"
            yield PreflightFinding(
                name, state, "Active, LinkUp", "network", "its rail is down: others carry its messages",
                len(ports) / (len(ports) - 1) if len(ports) > 1 else None,
            )  # fmt: skip
        elif rates[name] < usual:
            yield PreflightFinding(
                name, f"{rates[name]:.0f} Gb/s", f"{usual:.0f} Gb/s as the others have", "network",
                "a ring over all rails is as fast as this one", usual / rates[name] if rates[name] else None,
            )  # fmt: skip


def _host(root: Path, report: Preflight) -> Iterator[PreflightFinding]:
    cpus = root / "sys/devices/system/cpu"
    report.facts |= {
        "cpus online": _text(cpus / "online"),
        "numa nodes": _text(root / "sys/devices/system/node/online"),
    }
    governors = sorted({_text(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    report.facts["governor"] = ", ".join(governors) or "not set by this kernel"
    slow = [name for name in governors if name not in ("performance", "")]
    if slow:
        base, top = (
            _number(_text(cpus / f"cpu0/cpufreq/{name}")) for name in ("base_frequency", "cpuinfo_max_freq")
        )
        yield PreflightFinding(
            "host", f"CPU governor {', '.join(slow)}", "performance", "host",
            "launches come late whenever a core has slept", top / base if base and top else None,
        )  # fmt: skip
    if _text(root / "proc/sys/kernel/numa_balancing") not in ("", "0"):
        yield PreflightFinding(
            "host", "NUMA balancing on", "0 (kernel.numa_balancing)", "host",
            "pages of pinned ranks are unmapped to be watched: single launches stall",
        )  # fmt: skip
    chosen = re.search(r"\[(\w+)\]", _text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    report.facts["huge pages"] = chosen[1] if chosen else "unknown"
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        report.facts["cpu limit"] = f"{int(quota) / int(period):.1f} cores"
    if (load := _number(_text(root / "proc/loadavg").partition(" ")[0])) is not None:
        cores = len(list(cpus.glob("cpu[0-9]*"))) or 1
        if load > cores:
            yield PreflightFinding(
                "host", f"a load of {load:.1f}", f"below {cores}, the cores", "host",
                "other work takes the launching cores", load / cores,
            )  # fmt: skip


def _variables(environ: Mapping[str, str]) -> Iterator[PreflightFinding]:
    for rule in _rules().variables:
        name, value = rule["name"], environ.get(rule["name"])
        if value is not None and re.fullmatch(rule["costly"], value, re.IGNORECASE):
            yield PreflightFinding(name, value[:40], "not set", cast(Part, rule["part"]), rule["cost"])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:4096]
    except OSError:
        return ""


def _number(text: str) -> float | None:
    """The number that a text begins with; None for "[N/A]" and the like."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)", str(text))
    return float(match[1]) if match else None


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def read_recorded(folder: Path) -> Callable[[str], str | None]:
    """What the commands printed on another machine, from files with the names of COMMANDS."""

    def output(name: str) -> str | None:
        path = folder / name
        return path.read_text(errors="replace")[:MAX_OUTPUT] if path.is_file() else None

    return output
