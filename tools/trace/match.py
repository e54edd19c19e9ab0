"""Whether traces are of the job that a scenario describes: device, ranks, groups, precision, shapes, step.

A trace of another job proves nothing about this one: its contradiction is the first finding, and no
prediction is compared with it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, get_args

from pydantic import AliasChoices, Field

from tools.hardware import get_device
from tools.scenario import Scenario
from tools.scenario.spec import ClosedModel
from tools.trace.causes import CAUSES, CauseFinding, TraceEvidence
from tools.trace.diagnosis import ProfileDiagnosis
from tools.trace.rank_profile import RankProfile, find_device
from tools.trace.terms import find_described_axis

Aspect = Literal["device", "ranks", "groups", "precision", "shapes", "step time"]
MAX_STEP_RATIO = 4.0
"""Between measured and predicted step: the model errs by tens of percent, not by factors. A longer step is
of another job only if computing it takes that long: a fault is to be found, not refused."""
MIN_SHAPES = 3
MIN_VOTES = 2
POSSIBLE_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_PRODUCT = re.compile("gemm|mm|matmul|conv", re.I)
_PRECISIONS = (
    ("nvfp4", re.compile(r"nvfp4|mxe2m1|e2m1", re.I)),
    ("fp8", re.compile(r"e4m3|e5m2|fp8", re.I)),
    ("bf16", re.compile(r"bf16|bfloat16", re.I)),
    ("fp16", re.compile(r"(?<!b)(?:f16|fp16|half|hgemm|h\d+gemm)", re.I)),
    ("fp32", re.compile(r"sgemm|tf32|f32|fp32|s1688gemm|float", re.I)),
)
_NARROW = ("fp8", "mxfp8", "nvfp4")
_VENDOR_WORDS = {"nvidia": ("nvidia", "tesla", "geforce"), "amd": ("amd", "radeon", "instinct")}


class TraceFacts(ClosedModel):
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
    compute_s: float | None = None
    """Of the step: kernels and copies, which no slow network and no late host makes longer."""


class TraceContradiction(ClosedModel):
    about: Aspect
    trace: str
    scenario: str
    message: str = Field(validation_alias=AliasChoices("message", "says"))  # release 0.2 stored `says`


class TraceMatch(ClosedModel):
    """What was checked of a trace against a scenario, and what does not agree."""

    checked: list[Aspect]
    contradictions: list[TraceContradiction]

    @property
    def agrees(self) -> bool:
        return not self.contradictions

    def finding(self, step_time_s: float | None) -> CauseFinding | None:
        """The first finding, if the trace is of another job."""
        if self.agrees:
            return None
        label, lever, measure = CAUSES["trace_mismatch"]
        contradicted = "; ".join(found.message for found in self.contradictions)
        evidence = [
            TraceEvidence(ref=f"match[about={contradiction.about}]", value=1.0, summary=contradiction.message)
            for contradiction in self.contradictions
        ]
        return CauseFinding(
            cause="trace_mismatch",
            seconds=step_time_s or 0.0,
            share=1.0,
            ranks=[],
            evidence=evidence,
            lever=lever,
            measure=measure,
            summary=f"{label}: {contradicted}",
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
    own_ns = [
        fmean(step.breakdown.compute_ns + step.breakdown.memory_ns for step in profile.steady_steps)
        for profile in profiles
        if profile.steady_steps
    ]
    sizes: dict[str, set[int]] = defaultdict(set)
    for profile in profiles:
        used = {event.group: len(event.ranks) for event in profile.collectives if event.group and event.ranks}
        for name, size in (profile.group_sizes | used).items():
            axis = find_described_axis(profile.group_descriptions.get(name, ""))
            if axis and size > 1:
                sizes[axis].add(size)
    # By the shapes' types if recorded, or by the names of the matrix kernels.
    times_ns: dict[str, int] = defaultdict(int)
    for kernel in (kernel for profile in profiles for kernel in profile.top_kernels):
        precision = next((name for name, pattern in _PRECISIONS if pattern.search(kernel.name)), None)
        if precision and kernel.work_class == "compute" and _PRODUCT.search(kernel.name):
            times_ns[precision] += kernel.time_ns
    points = [point for profile in profiles for point in profile.roofline]
    for point in points:
        times_ns["fp32" if point.precision == "tf32" else point.precision] += point.time_ns
    # Columns and depths of plain products: rows count tokens, batched products are attention.
    products = [point for point in points if len(point.dims) == 4 and point.dims[0] == 1]
    return TraceFacts(
        devices=sorted({profile.device_name for profile in profiles if profile.device_name}),
        on_host=all(profile.basis == "host" for profile in profiles),
        world_size=max((profile.world_size or 0 for profile in profiles), default=0) or None,
        ranks_seen=len(profiles),
        groups={axis: sorted(found) for axis, found in sorted(sizes.items())},
        precision=max(times_ns, key=lambda name: times_ns[name]) if times_ns else None,
        widths=sorted({side for point in products for side in point.dims[2:]}),
        step_time_s=fmean(steps_ns) * 1e-9 if steps_ns else None,
        compute_s=fmean(own_ns) * 1e-9 if own_ns else None,
    )


def match_scenario(
    facts: TraceFacts, scenario: Scenario, predicted_step_s: float | None = None
) -> TraceMatch:
    """Checks whatever the traces record; what they do not record contradicts nothing."""
    compared = [*_compare_job(facts, scenario, predicted_step_s), *_compare_layout(facts, scenario)]
    aspects: tuple[Aspect, ...] = get_args(Aspect)
    contradictions = [
        TraceContradiction(
            about=about,
            trace=trace,
            scenario=ours,
            message=f"{about}: the trace has {trace}, the scenario {ours}",
        )
        for about, is_same, trace, ours in compared
        if not is_same
    ]
    return TraceMatch(
        checked=[aspect for aspect in aspects if any(about == aspect for about, *_ in compared)],
        contradictions=sorted(contradictions, key=lambda found: aspects.index(found.about)),
    )


def _compare_job(
    facts: TraceFacts, scenario: Scenario, predicted_s: float | None
) -> Iterator[tuple[Aspect, bool, str, str]]:
    """Whether device, ranks, precision and step time agree, and what both sides have."""
    ours, num_devices = get_device(scenario.cluster.device), scenario.cluster.num_devices
    if facts.on_host and not facts.devices and ours.vendor != "cpu":
        yield "device", False, "no device events", ours.name
    for name in facts.devices:
        if known := find_device(name):
            stated = re.search(r"(\d+) ?GB", name)
            other_memory = stated is not None and abs(float(stated[1]) * 1e9 / ours.memory_bytes - 1) > 0.2
            is_same_kind = known.name.split("-")[0] == ours.name.split("-")[0]
            same = known.name == ours.name or (is_same_kind and not other_memory)
        else:
            words = _VENDOR_WORDS.get(ours.vendor, ())
            same = not words or any(word in name.lower() for word in words)
        yield "device", same, name, ours.name
    if facts.world_size is not None or facts.ranks_seen > num_devices:
        ranks = facts.ranks_seen if facts.world_size is None else facts.world_size
        yield "ranks", ranks == num_devices, f"{ranks} ranks", f"{num_devices} devices"
    if traced := facts.precision:
        # A job in a narrow format also multiplies in bf16; one in bf16 never multiplies in a narrow format.
        precision = scenario.training.precision
        is_narrow = precision in _NARROW and traced in ("bf16", *_NARROW)
        yield "precision", traced == precision or is_narrow, traced, precision
    if predicted_s and (measured_s := facts.step_time_s):
        computed_s = measured_s if facts.compute_s is None else facts.compute_s
        same = computed_s / MAX_STEP_RATIO <= predicted_s <= MAX_STEP_RATIO * measured_s
        yield "step time", same, f"{measured_s:.3g} s per step", f"{predicted_s:.3g} s predicted"


def _compare_layout(facts: TraceFacts, scenario: Scenario) -> Iterator[tuple[Aspect, bool, str, str]]:
    """Groups, and the sides of products: they are the model's, divided by tp."""
    model, plan, widths = scenario.model, scenario.plan, set(facts.widths)
    if plan is not None:
        ranks = plan.data_ranks
        allowed = {
            "tp": {plan.tp, plan.tp * plan.cp, plan.etp},
            "cp": {plan.cp, plan.tp * plan.cp},
            "pp": {plan.pp, 2},
            "ep": {plan.ep, plan.ep * plan.etp},
            "dp": {
                *(plan.dp, ranks, plan.dp_shard, ranks // plan.dp_shard),
                *(ranks * plan.tp, max(ranks * plan.tp // (plan.ep * plan.etp), 1)),
            },
        }
        for axis, size in ((axis, size) for axis, sizes in facts.groups.items() for size in sizes):
            yield "groups", size in allowed[axis], f"{axis} groups of {size}", f"{axis} {getattr(plan, axis)}"
    if len(widths) < MIN_SHAPES:
        return
    if model.hidden_size not in widths:
        shown = ", ".join(map(str, facts.widths[:6]))
        yield "shapes", False, f"products with sides {shown}", f"hidden_size {model.hidden_size}"
    elif plan is not None:
        queries = model.num_attention_heads * model.head_dim
        keys = model.num_key_value_heads * model.head_dim
        up = model.intermediate_size * (2 if model.gated_mlp else 1)
        whole = (model.intermediate_size, up, queries, queries + 2 * keys)

        def votes(degree: int) -> int:
            """How many sides that only this degree gives are there; a whole side says nothing."""
            sides = {side // degree for side in whole if side and side % degree == 0}
            return len((sides - {model.hidden_size}) & widths)

        best = max(POSSIBLE_DEGREES, key=votes)
        same = votes(best) < MIN_VOTES or 2 * votes(plan.tp) >= votes(best)
        yield "shapes", same, f"products split {best} ways", f"tp {plan.tp}"
