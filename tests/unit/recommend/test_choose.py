"""From many plans to three: of different families, no plan beating the first, the fastest among them."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.recommend.cases import MIXTRAL, llama
from tools.recommend.choose import (
    SAFE,
    WINDOW,
    Preferences,
    candidates_for_first,
    choose,
    probability_of_fitting,
    shipped_preferences,
)
from tools.recommend.optimize import optimize, workload_of
from tools.recommend.score import family_of
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario
from tools.search.ranked import Ranked
from tools.search.search import Search


def ranked(raw: dict[str, object]) -> tuple[Workload, Ranked]:
    workload = workload_of(parse_scenario(raw))
    return workload, Search(workload.scenario, workload.constraints).run().best


CASES = {"llama": ranked(llama()), "mixtral": ranked(MIXTRAL)}
INDIFFERENT = Preferences(30.0, dict.fromkeys(shipped_preferences().weights, 0.0))
WEIGHTS = st.fixed_dictionaries({name: st.floats(-3.0, 3.0) for name in INDIFFERENT.weights})


def row_of(best: Ranked, plan: Plan) -> int:
    return next(i for i in range(len(best.step_time_s)) if best.plans.plan(i) == plan)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(CASES)), weights=WEIGHTS, time=st.floats(1.0, 60.0))
def test_whatever_the_preferences_the_guarantees_hold(
    name: str, weights: dict[str, float], time: float
) -> None:
    workload, best = CASES[name]
    rows = [row_of(best, plan) for plan in choose(workload, best, Preferences(time, weights))]
    assert len({family_of(best.plans.plan(row)) for row in rows}) == len(rows) == 3
    fastest = family_of(best.plans.plan(int(np.argmin(best.step_time_s))))
    assert fastest in {family_of(best.plans.plan(row)) for row in rows}
    times, memory, likely = best.step_time_s, best.memory_bytes, probability_of_fitting(workload, best)
    first = rows[0]
    assert likely[first] >= SAFE
    assert times[first] <= (1.0 + WINDOW) * times[likely >= SAFE].min()
    assert not np.any((times < times[first]) & (memory <= memory[first]))


def test_a_habit_decides_between_families_of_about_the_same_time() -> None:
    workload, best = CASES["mixtral"]
    near = candidates_for_first(workload, best)
    assert len(set(best.plans["pp"][near].tolist())) > 1
    shallow = replace(INDIFFERENT, weights={**INDIFFERENT.weights, "pipeline_doublings": -50.0})
    deep = replace(INDIFFERENT, weights={**INDIFFERENT.weights, "pipeline_doublings": 50.0})
    assert choose(workload, best, shallow)[0].pp < choose(workload, best, deep)[0].pp


def test_an_alternative_says_which_risk_of_the_first_it_hedges_against() -> None:
    first, *others = optimize(parse_scenario(llama())).proposals
    for other in (proposal for proposal in others if proposal.role == "alternative"):
        (hedge,) = [reason for reason in other.evidence if reason.says.startswith("hedges against")]
        if hedge.ref == "peak_memory_gib":
            assert other.prediction.peak_memory_gib < first.prediction.peak_memory_gib
        else:
            assert other.prediction.breakdown_s[hedge.ref] < first.prediction.breakdown_s[hedge.ref]
