"""Whether traces are of the job that a scenario describes: device, ranks, groups, precision, shapes, step.

A trace of another job proves nothing about this one: its contradiction is the first finding, and no
prediction is compared with it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal

from tools.hardware import get_device
from tools.scenario import Plan, Scenario
from tools.scenario.spec import Result
from tools.trace.causes import LEVERS, CauseEvidence, CauseFinding
from tools.trace.diagnosis import ProfileDiagnosis
from tools.trace.rank_profile import RankProfile, find_device
from tools.trace.terms import find_described_axis

Checked = Literal["device", "ranks", "groups", "precision", "shapes", "step time"]
MAX_STEP_RATIO = 4.0
"""Between measured and predicted step: the model errs by tens of percent, not by factors."""
MIN_SHAPES = 3
MIN_VOTES = 2
_PRECISIONS = (
    ("nvfp4", re.compile(r"nvfp4|mxe2m1|e2m1", re.I)),
    ("fp8", re.compile(r"e4m3|e5m2|fp8", re.I)),
    ("bf16", re.compile(r"bf16|bfloat16", re.I)),
    ("fp16", re.compile(r"(?<!b)(?:f16|fp16|half|hgemm|h\d+gemm)", re.I)),
    ("fp32", re.compile(r"sgemm|tf32|f32|fp32|s1688gemm|float", re.I)),
)
_NARROW = ("fp8", "mxfp8", "nvfp4")
_VENDOR_WORDS = {"nvidia": ("nvidia", "tesla", "geforce"), "amd": ("amd", "radeon", "instinct")}


class TraceFacts(Result):
    """What traces say of the job they were taken of; None or empty for what they do not record."""

    devices: list[str]
    """As the traces name them."""
    on_host: bool
    """No trace has device events."""
    world_size: int | None
    ranks_seen: int
    groups: dict[str, list[int]]
    """Sizes of process groups by axis, of those whose description names one."""
    precision: str | None
    """In which most matrix products ran."""
    widths: list[int]
    """Sides of the recorded matrix products."""
    step_time_s: float | None


class Contradiction(Result):
    about: Checked
    trace: str
    scenario: str
    says: str


class TraceMatch(Result):
    """What was checked of a trace against a scenario, and what does not agree."""

    checked: list[Checked]
    contradictions: list[Contradiction]

    @property
    def agrees(self) -> bool:
        return not self.contradictions

    def finding(self, step_time_s: float | None) -> CauseFinding | None:
        """The first finding, if the trace is of another job."""
        if self.agrees:
            return None
        says = (
            f"the trace does not match the scenario: {'; '.join(found.says for found in self.contradictions)}"
        )
        evidence = [
            CauseEvidence(ref=f"match[about={contradiction.about}]", value=1.0, says=contradiction.says)
            for contradiction in self.contradictions
        ]
        return CauseFinding(
            cause="trace_mismatch",
            seconds=step_time_s or 0.0,
            share=1.0,
            ranks=[],
            evidence=evidence,
            lever=LEVERS["trace_mismatch"],
            says=says,
        )


def with_match(diagnosis: ProfileDiagnosis, match: TraceMatch, step_time_s: float | None) -> ProfileDiagnosis:
    """The diagnosis with the contradiction as its first finding, if there is one."""
    finding = match.finding(step_time_s)
    if finding is None:
        return diagnosis
    update = {"cause": finding.cause, "lever": finding.lever, "causes": [finding, *diagnosis.causes]}
    return diagnosis.model_copy(update=update)


def trace_facts(profiles: Sequence[RankProfile]) -> TraceFacts:
    steps_ns = [
        fmean(step.breakdown.total_ns for step in profile.steady_steps)
        for profile in profiles
        if profile.steady_steps
    ]
    return TraceFacts(
        devices=sorted({profile.device_name for profile in profiles if profile.device_name}),
        on_host=all(profile.basis == "host" for profile in profiles),
        world_size=max((profile.world_size or 0 for profile in profiles), default=0) or None,
        ranks_seen=len(profiles),
        groups=_groups(profiles),
        precision=_precision(profiles),
        widths=_widths(profiles),
        step_time_s=fmean(steps_ns) * 1e-9 if steps_ns else None,
    )


def _groups(profiles: Sequence[RankProfile]) -> dict[str, list[int]]:
    sizes: dict[str, set[int]] = defaultdict(set)
    for profile in profiles:
        used = {event.group: len(event.ranks) for event in profile.collectives if event.group and event.ranks}
        for name, size in (profile.group_sizes | used).items():
            axis = find_described_axis(profile.group_descriptions.get(name, ""))
            if axis and size > 1:
                sizes[axis].add(size)
    return {axis: sorted(found) for axis, found in sorted(sizes.items())}


def _precision(profiles: Sequence[RankProfile]) -> str | None:
    """By the shapes' types if recorded, or by the names of the matrix kernels."""
    times: dict[str, int] = defaultdict(int)
    for profile in profiles:
        for kernel in profile.top_kernels:
            name = next((name for name, pattern in _PRECISIONS if pattern.search(kernel.name)), None)
            if (
                name
                and kernel.work_class == "compute"
                and re.search("gemm|mm|matmul|conv", kernel.name, re.I)
            ):
                times[name] += kernel.time_ns
        for point in profile.roofline:
            times["fp32" if point.precision == "tf32" else point.precision] += point.time_ns
    return max(times, key=lambda name: times[name]) if times else None


def _widths(profiles: Sequence[RankProfile]) -> list[int]:
    """Columns and depths of plain products: rows count tokens, batched products are attention."""
    products = [
        point
        for profile in profiles
        for point in profile.roofline
        if len(point.dims) == 4 and point.dims[0] == 1
    ]
    return sorted({side for point in products for side in point.dims[2:]})


def match_scenario(
    facts: TraceFacts, scenario: Scenario, predicted_step_s: float | None = None
) -> TraceMatch:
    """Checks whatever the traces record; what they do not record contradicts nothing."""
    checks: Mapping[Checked, Iterator[Contradiction | None]] = {
        "device": _check_device(facts, scenario),
        "ranks": _check_ranks(facts, scenario),
        "groups": _check_groups(facts, scenario.plan),
        "precision": _check_precision(facts, scenario),
        "shapes": _check_shapes(facts, scenario),
        "step time": _check_step(facts, predicted_step_s),
    }
    results = {about: list(check) for about, check in checks.items()}
    return TraceMatch(
        checked=[about for about, found in results.items() if found],
        contradictions=[found for result in results.values() for found in result if found],
    )


def _check_device(facts: TraceFacts, scenario: Scenario) -> Iterator[Contradiction | None]:
    """Yields nothing if the traces name no device."""
    ours = get_device(scenario.cluster.device)
    if facts.on_host and not facts.devices:
        if ours.vendor != "cpu":
            yield _contradiction("device", "no device events", ours.name)
        return
    for name in facts.devices:
        known = find_device(name)
        if known is not None:
            same = known.name == ours.name or (
                _root(known.name) == _root(ours.name) and not _states_memory(name, ours.memory_bytes)
            )
        else:
            words = _VENDOR_WORDS.get(ours.vendor, ())
            same = not words or any(word in name.lower() for word in words)
        yield None if same else _contradiction("device", name, ours.name)


def _root(name: str) -> str:
    return name.split("-")[0]


def _states_memory(name: str, memory_bytes: float) -> bool:
    """Whether a device's name states another memory than this."""
    stated = re.search(r"(\d+) ?GB", name)
    return stated is not None and abs(float(stated.group(1)) * 1e9 / memory_bytes - 1) > 0.2


def _check_ranks(facts: TraceFacts, scenario: Scenario) -> Iterator[Contradiction | None]:
    devices = scenario.cluster.num_devices
    if facts.world_size is not None:
        same = facts.world_size == devices
        yield None if same else _contradiction("ranks", f"{facts.world_size} ranks", f"{devices} devices")
    elif facts.ranks_seen > devices:
        yield _contradiction("ranks", f"{facts.ranks_seen} ranks", f"{devices} devices")


def _check_groups(facts: TraceFacts, plan: Plan | None) -> Iterator[Contradiction | None]:
    if plan is None:
        return
    for axis, sizes in facts.groups.items():
        allowed = _group_sizes(plan, axis)
        for size in sizes:
            same = size in allowed
            yield (
                None
                if same
                else _contradiction("groups", f"{axis} groups of {size}", f"{axis} {getattr(plan, axis)}")
            )


def _group_sizes(plan: Plan, axis: str) -> set[int]:
    ranks = plan.dp * plan.cp
    sizes = {
        "tp": {plan.tp, plan.tp * plan.cp, plan.etp},
        "cp": {plan.cp, plan.tp * plan.cp},
        "pp": {plan.pp, 2},
        "ep": {plan.ep, plan.ep * plan.etp},
        "dp": {
            *(plan.dp, ranks, plan.dp_shard, ranks // plan.dp_shard),
            *(ranks * plan.tp, max(ranks * plan.tp // (plan.ep * plan.etp), 1)),
        },
    }
    return sizes[axis]


def _check_precision(facts: TraceFacts, scenario: Scenario) -> Iterator[Contradiction | None]:
    """A job in a narrow format also multiplies in bf16; one in bf16 never multiplies in a narrow format."""
    ours, traced = scenario.training.precision, facts.precision
    if traced is None:
        return
    same = traced == ours or (ours in _NARROW and traced in ("bf16", *_NARROW))
    yield None if same else _contradiction("precision", traced, ours)


def _check_shapes(facts: TraceFacts, scenario: Scenario) -> Iterator[Contradiction | None]:
    """Products show how many ways layers are split: their sides are the model's, divided by tp."""
    model, widths = scenario.model, set(facts.widths)
    if len(widths) < MIN_SHAPES:
        return
    if model.hidden_size not in widths:
        shown = ", ".join(map(str, facts.widths[:6]))
        yield _contradiction("shapes", f"products with sides {shown}", f"hidden_size {model.hidden_size}")
        return
    if scenario.plan is None:
        return
    votes = {degree: _votes(scenario, degree, widths) for degree in (1, 2, 4, 8, 16, 32, 64)}
    best = max(votes, key=lambda degree: votes[degree])
    ours = _votes(scenario, scenario.plan.tp, widths)
    same = votes[best] < MIN_VOTES or 2 * ours >= votes[best]
    yield None if same else _contradiction("shapes", f"products split {best} ways", f"tp {scenario.plan.tp}")


def _votes(scenario: Scenario, degree: int, widths: set[int]) -> int:
    """How many sides that only this degree gives are among the products'; a whole side of the model says
    nothing."""
    model = scenario.model
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    up = model.intermediate_size * (2 if model.gated_mlp else 1)
    whole = (model.intermediate_size, up, queries, queries + 2 * keys)
    sides = {side // degree for side in whole if side and side % degree == 0}
    return len((sides - {model.hidden_size}) & widths)


def _check_step(facts: TraceFacts, predicted_s: float | None) -> Iterator[Contradiction | None]:
    if not facts.step_time_s or not predicted_s:
        return
    ratio = predicted_s / facts.step_time_s
    same = 1 / MAX_STEP_RATIO <= ratio <= MAX_STEP_RATIO
    yield (
        None
        if same
        else _contradiction(
            "step time", f"{facts.step_time_s:.3g} s per step", f"{predicted_s:.3g} s predicted"
        )
    )


def _contradiction(about: Checked, trace: str, scenario: str) -> Contradiction:
    return Contradiction(
        about=about,
        trace=trace,
        scenario=scenario,
        says=f"{about}: the trace has {trace}, the scenario {scenario}",
    )
