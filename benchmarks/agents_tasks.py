"""Thirty tasks whose truth lies in runs that nobody who answers has seen, and how an answer is judged.

Sixteen plans: sweeps of runs/ in which every plan was run, asked without them. Whatever was learned from
their source is left out: constants, residual, intervals, the recipes and cases of that model on that device;
the model's name too, so that nobody finds the sweep in his memory. Today's plan and what the notes tell are
drawn by a generator, never from the fastest quarter of what was run, so the notes cannot know the answer.
Eight causes: faults put into a simulated cluster, drawn by a seed of their own.
Six notes: what an engineer wrote about the job, in words that were not tried on any reader, beside the same
scenario structured by hand.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import JsonValue

from benchmarks.calibrate import World
from benchmarks.cluster_faults import CAUSE_OF, KINDS, LAYER_BYTES
from benchmarks.evidence import CRASHED, Sweep, read_sweeps
from benchmarks.notes import base_scenario
from benchmarks.simulated_cluster import PER_NODE, ClusterFault, Layout, SimulatedCluster, SimulatedJob
from graph.context import Context
from research.published import RUNS, SweptPlan, read_sources
from tools.errors import InputError
from tools.kb import KnowledgeBase
from tools.kb.entries import Case
from tools.kb.recipes import load_recipes, nearest_recipes
from tools.kb.seed import Seed, load_seed
from tools.recommend.hypotheses import HypothesisCause
from tools.scenario import Plan, parse_scenario
from tools.search.constraints import parse_constraints

Kind = Literal["plan", "cause", "notes"]
SEED = 38
MIN_TRIED = 3
TRIED = ("tp", "pp", "ep", "zero_stage", "micro_batch_size")
"""Fields whose tried values are the plans that may be advised."""
CAUSE_LAYOUTS: tuple[Layout, ...] = ("fsdp", "tp_dp")
CAUSES = 8
TELLING = (
    "A step takes {today} at the moment. In the first week we also had {a} running: {a_took}. "
    "With {b} {b_took}.",
    "Today: {today} a step. Earlier attempts, same batch: {a} -> {a_took}; {b} -> {b_took}.",
    "We see {today} per step as it stands. Before that somebody ran {a}, where {a_took}, and {b}, "
    "where {b_took}.",
    "Currently at {today} a step. For the record, {a}: {a_took}. And {b}: {b_took}.",
)
"""How the generator tells of a measured step and two other runs."""


class Judgement(NamedTuple):
    regret: float
    """Plans: how much slower than the best; causes and notes: 0 right, 1 wrong."""
    told: str


@dataclass(frozen=True)
class Task:
    id: str
    kind: Kind
    raw: dict[str, Any]
    """The request of a session."""
    truth: Any
    """A Sweep, a cause, or the constraints and facts that the notes state."""
    source: str = ""
    folder: Path | None = None
    """Of the traces."""

    def context(self, known: Context) -> Context:
        """What is known without the task's source."""
        if self.kind != "plan":
            return known
        scenario, repo = self.truth.plans[0].scenario, read_sources()[self.source].repo
        own = {
            match.recipe.id
            for match in nearest_recipes(scenario, len(load_recipes()), None)
            if match.is_same_model and match.is_same_device
        }
        recipes = [recipe for recipe in load_recipes() if recipe.id not in own]

        def is_own(body: object, sources: str) -> bool:
            same = isinstance(body, Case) and body.device == scenario.cluster.device
            return same and (
                (isinstance(body, Case) and body.model == scenario.model.name) or repo in sources
            )

        entries = [e for e in load_seed().entries if not is_own(e.body, str(e.body))]
        knowledge = KnowledgeBase(Seed(tuple(entries), f"{load_seed().version} without {self.source}"))
        calibration = _world().without(self.source)
        return replace(known, knowledge=knowledge, recipes=recipes, calibration=calibration)

    # How an answer is judged

    def judge_plans(self, plans: Sequence[Mapping[str, JsonValue]]) -> Judgement:
        """By the first plan, or the next one if nobody ran the first."""
        sweep: Sweep = self.truth
        for number, fields in enumerate(plans, start=1):
            try:
                plan = parse_scenario({**self.raw, "constraints": {}, "plan": dict(fields)}).plan
            except InputError as error:
                return Judgement(CRASHED, f"plan {number} is not legal: {error}")
            regret = sweep.regret(plan) if plan else None
            if regret is not None:
                return Judgement(
                    regret, f"plan {number}: {'crashed' if self.is_crash(plan) else f'{regret:.0%}'}"
                )
        return Judgement(CRASHED, "no plan that was run")

    def is_crash(self, plan: Plan | None) -> bool:
        return plan is not None and self.truth.regret(plan) == CRASHED

    def judge_cause(self, cause: str) -> Judgement:
        return Judgement(float(cause != self.truth), f"{cause}, planted {self.truth}")

    def judge_notes(self, constraints: Mapping[str, JsonValue], others: Mapping[str, JsonValue]) -> Judgement:
        """Constraints are compared as they are understood, everything else as numbers."""
        today = parse_scenario(self.raw).plan
        wanted, facts = self.truth
        try:
            is_same = parse_constraints(dict(constraints), today) == parse_constraints(wanted, today)
        except InputError as error:
            return Judgement(1.0, f"not legal: {error}")
        is_same = is_same and dict(others) == facts
        return Judgement(float(not is_same), f"{dict(constraints)} {dict(others)}")


@cache
def _world() -> World:
    return World(RUNS)


def all_tasks(folder: Path) -> list[Task]:
    """Traces are written into the folder."""
    return [*plan_tasks(), *cause_tasks(folder), *notes_tasks()]


# Plans


def plan_tasks() -> list[Task]:
    sweeps = [sweep for sweep in read_sweeps() if len(sweep.plans) >= MIN_TRIED]
    return [_plan_task(number, sweep) for number, sweep in enumerate(sweeps, start=1)]


def _plan_task(number: int, sweep: Sweep) -> Task:
    """Every second one has notes that tell of today's step and two other runs."""
    rng = np.random.default_rng([SEED, number])
    ran = sorted((p for p in sweep.plans if p.measurement), key=_took_s)
    today = ran[int(rng.integers(len(ran) // 2, len(ran)))]
    others = [
        p
        for p in sweep.plans
        if p is not today and (p.measurement is None or _took_s(p) >= _took_s(ran[len(ran) // 4]))
    ]
    raw = sweep.hidden.model_dump(mode="json", exclude_defaults=True)
    raw["model"].pop("name", None)
    tried = {
        name: sorted({getattr(p.scenario.plan, name) for p in sweep.plans if p.scenario.plan})
        for name in TRIED
    }
    raw["constraints"] = {**raw.get("constraints", {}), **tried}
    raw["plan"] = today.scenario.plan.model_dump(mode="json") if today.scenario.plan else None
    if number % 2 == 0:
        a, b = (others[i] for i in rng.permutation(len(others))[:2])
        style = TELLING[(number // 2) % len(TELLING)]
        raw["notes"] = style.format(
            today=f"{_took_s(today):.3g} s", a=_words(a), a_took=_outcome(a), b=_words(b), b_took=_outcome(b)
        )
    return Task(f"plan-{number:02}", "plan", raw, sweep, sweep.source)


def _took_s(plan: SweptPlan) -> float:
    return plan.measurement.step_time_s if plan.measurement else float("inf")


def _words(swept: SweptPlan) -> str:
    plan = swept.scenario.plan
    assert plan is not None
    parts = [
        f"tp {plan.tp}",
        f"pp {plan.pp}",
        f"micro-batch {plan.micro_batch_size}",
        f"ZeRO {plan.zero_stage}",
    ]
    return ", ".join([*parts[:2], *([f"ep {plan.ep}"] if plan.ep > 1 else []), *parts[2:]])


def _outcome(swept: SweptPlan) -> str:
    return f"{_took_s(swept):.3g} s a step" if swept.measurement else "it crashed"


# Causes


def cause_tasks(folder: Path) -> list[Task]:
    """One fault each, of different kinds, drawn by the seed."""
    rng = np.random.default_rng(SEED)
    usable = [k for k in KINDS if k.kind != "none" and k.scale == 1 and {*k.layouts} & {*CAUSE_LAYOUTS}]
    tasks: list[Task] = []
    seen: Counter[str] = Counter()
    for place in rng.permutation(len(usable)).tolist():
        kind = usable[place]
        cause = CAUSE_OF[kind.kind]
        if seen[cause] >= 1 or len(tasks) == CAUSES:
            continue
        seen[cause] += 1
        layouts = [layout for layout in CAUSE_LAYOUTS if layout in kind.layouts]
        layout = layouts[int(rng.integers(len(layouts)))]
        first = int(rng.integers(2)) * PER_NODE
        ranks: tuple[int, ...] = ()
        if kind.hit == "node":
            ranks = tuple(range(first, first + PER_NODE))
        elif isinstance(kind.hit, int) and kind.hit:
            ranks = tuple(sorted(rng.choice(2 * PER_NODE, kind.hit, replace=False).tolist()))
        weight = float(rng.uniform(0.9, 1.1))
        job = SimulatedJob(
            2,
            layout,
            "h100",
            layers=5,
            layer_bytes=LAYER_BYTES[layout] * weight,
            seed=int(rng.integers(1, 10**6)),
        )
        fault = ClusterFault(
            kind.kind, ranks, kind.speed, int(rng.integers(PER_NODE)), 0, kind.delay_ms, kind.marked
        )
        id = f"cause-{len(tasks) + 1:02}"
        traces = folder / id
        traces.mkdir(parents=True)
        cluster = SimulatedCluster(job, fault).run()
        # A trace lists every group of its job: those of other layouts would be of another plan.
        used = ("world",) if layout == "fsdp" else ("node", "rail")
        cluster.groups = {name: cluster.groups[name] for name in used}
        cluster.write(traces)
        tasks.append(Task(id, "cause", {**_traced_job(job), "traces": str(traces)}, cause, folder=traces))
    return tasks


def _traced_job(job: SimulatedJob) -> dict[str, Any]:
    """A scenario that the simulated job could be: its layers' bytes, its groups, about its step."""
    is_split = job.layout == "tp_dp"
    step = 1024 if is_split else 512  # so that tp divides the heads
    hidden = round((job.layer_bytes / 24) ** 0.5 / step) * step
    devices = job.nodes * PER_NODE
    dp = devices // PER_NODE if is_split else devices
    return {
        "model": {
            "num_hidden_layers": job.layers, "hidden_size": hidden, "intermediate_size": 4 * hidden,
            "num_attention_heads": hidden // 128, "vocab_size": 51200, "gated_mlp": False,
        },
        "cluster": {"device": "h100-sxm-80gb", "num_devices": devices},
        "training": {
            "seq_len": 2048, "global_batch_size": dp * (2 if is_split else 1), "precision": "fp16",
            "framework": "megatron-core" if is_split else "torch-fsdp2",
        },
        "plan": {
            "tp": PER_NODE if is_split else 1, "pp": 1, "cp": 1, "dp": dp, "dp_shard": dp,
            "zero_stage": 1 if is_split else 3, "micro_batch_size": 2 if is_split else 1, "recompute": "none",
        },
    }  # fmt: skip


# Notes

NOTES: tuple[tuple[str, dict[str, JsonValue], dict[str, float]], ...] = (
    (
        "Background: the serving folks cut our checkpoints up themselves and their script chokes on anything "
        "but quarter-width matrices, so tensor slices have to come in fours. Somebody also floated sixteen "
        "thousand tokens for next quarter, that is not now.",
        {"tp": 4},
        {},
    ),
    (
        "Eight stages is as deep as our scheduler copes with, shallower is fine. An evaluation process lives "
        "on the same cards and wants a tenth of their memory to itself, always.",
        {"pp": {"max": 8}, "max_memory_fraction": 0.9},
        {},
    ),
    (
        "One optimiser step costs us 14.2 seconds as of this morning. The network people say this hall has "
        "half the uplinks it should have, two to one towards the spine.",
        {},
        {"measured_step_time_s": 14.2, "oversubscription": 2.0},
    ),
    (
        "The data loader cannot pack more than two sequences at a time for one rank, a single one is fine "
        "too. And please leave the depth of the pipeline as it is, we resume from these weights on Monday.",
        {"micro_batch_size": {"max": 2}, "pp": 4},
        {},
    ),
    (
        "Careful, these boxes were bought with the 200 gigabit cards, one for each GPU, not the 400 in the "
        "brochure. Recomputing everything is off the table since the last audit.",
        {"recompute": {"not": ["full"]}},
        {"inter_node_gbps_per_device": 200.0},
    ),
    (
        "Four pipeline stages is the least that works for us, the embedding alone fills a card. Our fork "
        "never got the interleaved schedule, so one chunk a stage. I would love to hear what you think of "
        "fp8.",
        {"pp": {"min": 4}, "vpp": 1},
        {},
    ),
)
"""Each with the constraints and the other figures that it states: written down before any reader saw it."""


def notes_tasks() -> list[Task]:
    raw = base_scenario().model_dump(mode="json", exclude_defaults=True)
    return [
        Task(f"notes-{number:02}", "notes", {**raw, "notes": text}, (constraints, figures))
        for number, (text, constraints, figures) in enumerate(NOTES, start=1)
    ]


def cause_names() -> Sequence[str]:
    return get_args(HypothesisCause)


def trace_table(folder: Path) -> str:
    """What a plain look at the traces shows, without any diagnosis: for who has no tools."""
    files = sorted(folder.glob("rank*.json"), key=lambda file: int(file.stem[4:]))
    lines = ["Per rank, over all steps (milliseconds unless said otherwise):"]
    for file in files:
        events = json.loads(file.read_text())["traceEvents"]
        steps = [e["dur"] / 1e3 for e in events if e["name"].startswith("ProfilerStep")]
        kernels = [e for e in events if e["cat"] == "kernel"]
        nccl: dict[str, list[float]] = {}
        for e in kernels:
            if "nccl" in e["name"]:
                name = e["name"].split("_RING")[0].removeprefix("ncclDevKernel_")
                group = e["args"].get("Process Group Name", "").rstrip("0123456789")
                nccl.setdefault(f"{name}/{group}", []).append(e["dur"] / 1e3)
        compute = [e for e in kernels if "nccl" not in e["name"]]
        products = sum(e["dur"] for e in compute if "gemm" in e["name"] or "cutlass" in e["name"]) / 1e3
        calls: dict[str, list[float]] = {}
        for e in events:
            if (
                e["cat"] in ("cuda_runtime", "user_annotation", "gpu_memcpy")
                and "ProfilerStep" not in e["name"]
            ):
                calls.setdefault(e["name"], []).append(e["dur"] / 1e3)
        shown = [
            f"{n} n={len(d)} mean={np.mean(d):.3g} min={min(d):.3g} max={max(d):.3g}" for n, d in nccl.items()
        ]
        host = [f"{n[:48]} n={len(d)} sum={sum(d):.3g} max={max(d):.3g}" for n, d in calls.items()]
        begun = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels)
        gap, end = 0.0, begun[0][1]
        for start, stop in begun:
            gap, end = gap + max(start - end, 0.0), max(end, stop)
        busy = sum(e["dur"] for e in compute) / 1e3
        parts = [
            f"{file.stem}: steps {' '.join(f'{s:.1f}' for s in steps)}",
            f"compute kernels {busy:.1f} (matrix products {products:.1f})",
            f"device idle {gap / 1e3:.1f}",
            *shown,
            f"host: {'; '.join(host)}",
        ]
        lines.append("; ".join(parts))
    return "\n".join(lines)


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="asap-agents-")
