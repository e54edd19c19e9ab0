"""Switches that leave the numerics alone, searched beside a plan: what the framework's release offers on this
device (`tools/scenario/levers.py`), priced by the cost model. Single switches and pairs are tried in turn
until none helps, so that a switch which pays only beside another is found.
"""

from collections.abc import Mapping
from itertools import product

from tools.recommend.workload import Workload
from tools.scenario import Plan
from tools.scenario.levers import PLAN_SETTINGS, SettingValue, offered_levers

MIN_GAIN = 0.002
"""Of the step: a switch that saves less is not worth a change."""
MAX_ROUNDS = 4


def best_settings(workload: Workload, plan: Plan) -> dict[str, SettingValue]:
    """The switches that make this plan faster than today's do and let it fit; empty if none does."""
    chosen: dict[str, SettingValue] = {}
    fastest_s = workload.predict([plan])[0].step_time_s
    for _ in range(MAX_ROUNDS):
        tried = [{**chosen, **step} for step in _steps(workload.with_settings(chosen), plan)]
        if not tried:
            break
        timed = [(_step_time_s(workload.with_settings(settings), plan), settings) for settings in tried]
        time_s, settings = min(timed, key=lambda pair: pair[0])
        if time_s > fastest_s * (1.0 - MIN_GAIN):
            break
        fastest_s, chosen = time_s, settings
    return chosen


def _step_time_s(workload: Workload, plan: Plan) -> float:
    prediction = workload.predict([plan])[0]
    fits = prediction.peak_memory_gib <= workload.limit_gib
    return prediction.step_time_s if fits else float("inf")


def _steps(workload: Workload, plan: Plan) -> list[Mapping[str, SettingValue]]:
    """One or two switches that the plan meets the needs of and that are not as they should be already."""
    scenario = workload.with_plan(plan)
    single: list[dict[str, SettingValue]] = [
        {lever.setting: lever.value}
        for lever in offered_levers(scenario)
        if lever.setting not in PLAN_SETTINGS
        and getattr(scenario.training, lever.setting) not in (None, lever.value)
        and lever.suits(scenario)
    ]
    pairs = [{**one, **other} for one, other in product(single, single) if one.keys() != other.keys()]
    return [*single, *pairs]
