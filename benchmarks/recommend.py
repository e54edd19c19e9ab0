"""What is the advice worth on plans that were really run, and would experts give it?

Every figure is of workloads that the preferences have not seen: whole sources are left out, and no sweep is
in them. Intervals (80%) are a bootstrap over workloads. Beside ours: chance (a family of those that fit), the
rule of thumb (least tp * pp * cp that fits, then the fastest) and the predicted time alone.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from research.fit import cross_validate, source_folds, tabulate
from research.preferences import best_pull, choice, feature_names, left_out
from research.published import (
    SMALL_MODEL_SOURCE,
    Measurement,
    Offer,
    SweptPlan,
    expert_runs,
    measurements,
    offers,
    read_runs,
    sweep_plans,
)
from tools.errors import AsapError
from tools.frameworks import export_plan
from tools.frameworks.formats import EXPORT_FORMATS, REGISTRY
from tools.model.runs import Run
from tools.physics.inputs import Array
from tools.recommend.choose import SAFE, WINDOW, Preferences, choose, families, probability_of_fitting
from tools.recommend.dial import with_dial
from tools.recommend.optimize import propose, workload_of
from tools.recommend.report import Proposal
from tools.recommend.score import family_of
from tools.scenario import Plan, PlanColumns, Scenario
from tools.search.ranked import Ranked
from tools.search.search import Search

TOP = 5
TOLERANCE = 1e-9
EXPORTED_MODELS = (
    "Llama 3/3.1 8B", "Llama 2 70B", "Llama 3/3.1 70B", "Llama 3.1 405B", "Qwen3-32B", "Qwen3-30B-A3B",
    "Qwen3-235B-A22B", "DeepSeek-V3 671B", "gpt-oss-120b", "Moonlight-16B-A3B", "Nemotron 3 Nano 30B-A3B",
    "Nemotron 3 Super 120B-A12B",
)  # fmt: skip
Family = tuple[int, ...]


def main() -> int:
    try:
        runs = read_runs()
    except AsapError as error:
        print(f"recommend: error: {error}", file=sys.stderr)
        return 2
    rows = measurements(runs)
    print_sweeps(sweep_plans(runs))
    print_groups(rows)
    for frozen in (False, True):
        print_agreement(expert_runs(rows), frozen=frozen)
    print_exports(runs)
    return 0


# Measured regret: sweeps


@dataclass(frozen=True)
class Advice:
    """How much slower the proposals of one strategy are than the best measured plan; None: it was not
    measured; infinite: it crashed."""

    regrets: tuple[float | None, ...]

    def first_within(self, share: float) -> bool | None:
        return None if self.regrets[0] is None else self.regrets[0] <= share

    def any_within(self, share: float) -> bool | None:
        known = [regret for regret in self.regrets if regret is not None]
        return min(known) <= share if known else None

    @property
    def crashes(self) -> int:
        return sum(regret == np.inf for regret in self.regrets)


FIXED = ("recompute", "schedule", "cp", "vpp", "sequence_parallel")


def print_sweeps(swept: Sequence[SweptPlan]) -> None:
    """What a sweep held fixed is given as constraints; the rest is hidden."""
    by_workload: dict[str, list[SweptPlan]] = defaultdict(list)
    for plan in swept:
        by_workload[plan.workload].append(plan)
    # Step times of other batches, lengths or settings say nothing about plans.
    by_workload = {name: plans for name, plans in by_workload.items() if _is_comparable(plans)}
    strategies: dict[str, list[Advice]] = defaultdict(list)
    started = time.perf_counter()
    for plans in by_workload.values():
        for strategy, advice in _advice(plans).items():
            strategies[strategy].append(advice)
    seconds = time.perf_counter() - started
    print(
        f"Sweeps: {len(by_workload)} workloads, {len(swept)} plans, none in the preferences ({seconds:.0f} s)"
    )
    print(f"{'':14}{'first within 10%':>26}{'one of three within 5%':>30}{'crashed':>12}")
    for strategy, advices in strategies.items():
        first = _share([a.first_within(0.10) for a in advices])
        three = _share([a.any_within(0.05) for a in advices])
        proposals = sum(len(a.regrets) for a in advices)
        print(f"{strategy:14}{first:>26}{three:>30}{sum(a.crashes for a in advices):>6} of {proposals}")
    print("A proposal that was not measured is judged by the best run of its degrees and ZeRO stage;")
    print("without one it is left out of the shares.\n")


def _is_comparable(plans: Sequence[SweptPlan]) -> bool:
    first, ran = plans[0].scenario, [plan for plan in plans if plan.measurement]
    same = all((p.scenario.training, p.scenario.cluster) == (first.training, first.cluster) for p in plans)
    return same and len(ran) > 1


def _advice(plans: Sequence[SweptPlan]) -> dict[str, Advice]:
    measured = {
        _identity(p.scenario.plan): p.measurement.step_time_s
        for p in plans
        if p.measurement and p.scenario.plan
    }
    crashed = {_identity(p.scenario.plan) for p in plans if p.scenario.plan and not p.measurement} - {
        *measured
    }
    scenario, best = plans[0].scenario, min(measured.values())
    values = {name: {getattr(p.scenario.plan, name) for p in plans} for name in FIXED}
    fixed = {name: found.pop() for name, found in values.items() if len(found) == 1}
    hidden = scenario.model_copy(
        update={
            "plan": None,
            "constraints": {name: value for name, value in fixed.items() if value is not None},
        }
    )
    workload = workload_of(hidden)
    ranked = with_dial(workload, Search(hidden, workload.constraints).run().best)

    of_degrees: dict[tuple[int, ...], float] = {}
    for (*degrees, _), step_s in sorted(measured.items(), key=lambda known: -known[1]):
        of_degrees[tuple(degrees)] = step_s

    def judge(proposals: Sequence[Plan]) -> Advice:
        keys = [_identity(plan) for plan in proposals]
        took_s = [np.inf if k in crashed else measured.get(k, of_degrees.get(k[:-1])) for k in keys]
        return Advice(tuple(None if step_s is None else step_s / best - 1 for step_s in took_s))

    return {
        "ours": judge(choose(workload, ranked)),
        "time alone": judge(_fastest_of_families(ranked)),
        "rule of thumb": judge(_least_parallel(ranked)),
    }


def _identity(plan: Plan | None) -> tuple[int, ...]:
    if plan is None:
        return ()
    sharded = plan.sharding_stage if plan.data_ranks > 1 else 0
    return (*family_of(plan), plan.dp, sharded, plan.micro_batch_size)


def _fastest_of_families(ranked: Ranked, limit: int = 3) -> list[Plan]:
    return _of_families(ranked, np.argsort(ranked.step_time_s, kind="stable"), limit)


def _least_parallel(ranked: Ranked, limit: int = 3) -> list[Plan]:
    p = ranked.plans
    return _of_families(ranked, np.lexsort((ranked.step_time_s, p["tp"] * p["pp"] * p["cp"])), limit)


def _of_families(ranked: Ranked, order: np.ndarray, limit: int) -> list[Plan]:
    chosen: dict[Family, Plan] = {}
    for row in order:
        plan = ranked.plans.plan(int(row))
        chosen.setdefault(family_of(plan), plan)
        if len(chosen) == limit:
            break
    return list(chosen.values())


# Measured regret: plans of one workload and release


def print_groups(rows: Sequence[Measurement]) -> None:
    """Predicted by a fit without the source; releases are not mixed."""
    kept = [row for row in rows if row.source != SMALL_MODEL_SOURCE]
    table = tabulate(kept)
    predicted = cross_validate(table, source_folds(table.sources)).predicted_s
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(kept):
        groups[(row.source, *_workload_key(row.scenario))].append(index)
    several = [np.array(g) for g in groups.values() if len({kept[i].scenario.plan for i in g}) > 1]
    regrets = np.array([_regret(table.measured_s[g], predicted[g]) for g in several])
    right = [pair for g in several for pair in _pairs_right(table.measured_s[g], predicted[g])]
    print(f"Groups: {len(several)} workloads with several measured plans of one release, sources left out")
    print(
        f"that predicted fastest: {regrets.mean():.1%} slower than the best, 90% within {_p90(regrets):.1%}"
    )
    print(f"pairs more than 5% apart: {np.mean(right):.0%} of {len(right)} in the right order\n")


def _workload_key(s: Scenario) -> tuple[object, ...]:
    return (s.model, s.cluster.device, s.cluster.num_devices, s.training)


def _regret(measured: Array, predicted: Array) -> float:
    return float(measured[np.argmin(predicted)] / measured.min() - 1.0)


def _p90(values: Array) -> float:
    return float(np.quantile(values, 0.9))


def _pairs_right(measured: Array, predicted: Array) -> list[bool]:
    apart = [
        (i, j)
        for i, j in combinations(range(len(measured)), 2)
        if abs(np.log(measured[i] / measured[j])) > 0.05
    ]
    return [bool((measured[i] < measured[j]) == (predicted[i] < predicted[j])) for i, j in apart]


# Agreement with published plans


def print_agreement(experts: Sequence[Measurement], *, frozen: bool) -> None:
    started = time.perf_counter()
    gathered = offers(experts, frozen=frozen)
    seconds = time.perf_counter() - started
    choices, names = [choice(o) for o in gathered], feature_names(gathered[0])
    learned = left_out(choices, names, best_pull(choices, names))
    strategies: Mapping[str, Callable[[Offer], list[Family]]] = {
        "ours": lambda o: _ours(o, learned[o.expert.source]),
        "time alone": lambda o: [family_of(p) for p in _fastest_of_families(o.found.best, TOP)],
        "rule of thumb": lambda o: [family_of(p) for p in _least_parallel(o.found.best, TOP)],
    }
    free = "ZeRO stage and recomputation are the expert's, as in PROMPTS" if frozen else "all free"
    with_choice = [o for o in gathered if _families_that_fit(o) > 1]
    print(f"Agreement of (tp, pp, cp, ep) with the published plan, {free}: {len(gathered)} modern workloads,")
    print(
        f"{len(with_choice)} with a choice; preferences without the source; {seconds:.0f} s in two processes"
    )
    print(f"{'':14}{'first':>22}{'one of three':>22}{'one of five':>22}{'with a choice':>18}")
    for strategy, ranking in strategies.items():
        places = [_place(o, ranking(o)) for o in gathered]
        among = [place for o, place in zip(gathered, places, strict=True) if _families_that_fit(o) > 1]
        shares = "".join(f"{_share([place < k for place in places]):>22}" for k in (1, 3, TOP))
        choices_only = "/".join(f"{np.mean([place < k for place in among]):.0%}" for k in (1, 3, TOP))
        print(f"{strategy:14}{shares}{choices_only:>18}")
    chance = [min(k / _families_that_fit(o), 1.0) for o in gathered for k in (1, 3, TOP)]
    print(f"{'chance':14}" + "".join(f"{np.mean(chance[i::3]):>22.0%}" for i in range(3)))
    if not frozen:
        _print_sources(gathered, strategies["ours"])
        _print_legality(gathered, learned)
    print()


def _ours(offer: Offer, preferences: Preferences) -> list[Family]:
    """The three proposals, then the next families by the same preferences."""
    workload, ranked = offer.workload, offer.found.best
    three = [family_of(plan) for plan in choose(workload, ranked, preferences)]
    found = families(workload, ranked)
    order = np.argsort(-found.utility(preferences), kind="stable")
    others = [family_of(ranked.plans.plan(int(found.rows[k]))) for k in order[: 2 * TOP]]
    return [*dict.fromkeys([*three, *others])][:TOP]


def _place(offer: Offer, ranking: Sequence[Family]) -> int:
    return ranking.index(offer.family) if offer.family in ranking else TOP


def _families_that_fit(offer: Offer) -> int:
    return len(families(offer.workload, offer.found.best).rows)


def _print_sources(gathered: Sequence[Offer], ranking: Callable[[Offer], list[Family]]) -> None:
    by_source: dict[str, list[int]] = defaultdict(list)
    for o in gathered:
        by_source[o.expert.source].append(_place(o, ranking(o)))
    shares = [
        f"{name} {np.mean([p < 1 for p in v]):.0%}/{np.mean([p < 3 for p in v]):.0%} of {len(v)}"
        for name, v in by_source.items()
    ]
    print("by source, first/three: " + ", ".join(shares))


def _print_legality(gathered: Sequence[Offer], learned: Mapping[str, Preferences]) -> None:
    proposals = [
        o.workload.objection(plan)
        for o in gathered
        for plan in choose(o.workload, o.found.best, learned[o.expert.source])
    ]
    accepted = sum(objection is None for objection in proposals)
    print(f"proposals that the framework's rules and configuration accept: {accepted} of {len(proposals)}")
    beaten, given_away = 0, []
    for o in gathered:
        first = PlanColumns.of(choose(o.workload, o.found.best, learned[o.expert.source])[:1])
        costs, found = o.workload.costs(first), o.found.best
        step_s, memory = float(costs.step_time_s[0]) * (1 - TOLERANCE), float(costs.memory_bytes[0])
        beaten += bool(np.any((found.step_time_s < step_s) & (found.memory_bytes <= memory)))
        likely = probability_of_fitting(o.workload, found)
        given_away.append(step_s / found.step_time_s[likely >= min(SAFE, likely.max())].min() - 1)
    above = sum(share > WINDOW for share in given_away)
    print(f"first beaten in time and memory by a searched plan: {beaten} of {len(gathered)}")
    print(
        f"first gives away more than {WINDOW:.0%} of predicted time: {above}, at most {max(given_away):.1%}"
    )


# Each framework its own space


def print_exports(runs: Sequence[Run]) -> None:
    """Twelve workloads planned for each framework, in bf16, which all of them take."""
    by_model = {run.scenario.model.name: run.scenario for run in runs if not run.crashed}
    results = []
    for format in EXPORT_FORMATS:
        framework = REGISTRY[format].framework
        if framework is None:
            continue
        accepted = total = refused = 0
        for name in EXPORTED_MODELS:
            published = by_model[name]
            changes = {"framework": framework, "precision": "bf16", "precision_scope": None}
            training = published.training.model_copy(update=changes)
            scenario = published.model_copy(update={"plan": None, "training": training})
            try:
                proposals = propose(workload_of(scenario)).proposals
            except AsapError:  # the framework cannot train the model, or nothing fits
                refused += 1
                continue
            total += len(proposals)
            accepted += sum(_is_exported(scenario, proposal, format) for proposal in proposals)
        results.append(f"{format} {accepted} of {total}" + (f" ({refused} refused)" if refused else ""))
    print(f"Proposals that are exported, {len(EXPORTED_MODELS)} workloads: {', '.join(results)}")


def _is_exported(scenario: Scenario, proposal: Proposal, format: str) -> bool:
    training = scenario.training.model_copy(update=proposal.settings)
    try:
        export_plan(scenario.model_copy(update={"plan": proposal.plan, "training": training}), format)
    except AsapError:
        return False
    return True


def _share(hits: Sequence[bool | None]) -> str:
    """A share with the 80% interval of a bootstrap over workloads."""
    known = np.array([hit for hit in hits if hit is not None], dtype=float)
    if not len(known):
        return "-"
    draws = np.random.default_rng(0).choice(known, size=(2000, len(known))).mean(axis=1)
    low, high = np.quantile(draws, [0.1, 0.9])
    return f"{known.mean():.0%} of {len(known)} ({low:.0%}-{high:.0%})"


if __name__ == "__main__":
    raise SystemExit(main())
