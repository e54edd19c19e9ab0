"""One scenario with what every part of a recommendation needs: device, calibration, predictions.

Also which plans the framework's own configuration can express: others are not proposed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tools.errors import InputError
from tools.frameworks import export_plan, has_own_format
from tools.hardware import Device
from tools.model.calibration import Calibration
from tools.model.predict import Costs, Prediction, evaluate, predict, scaled_costs
from tools.physics.encode import encode_plans, scenario_device
from tools.physics.inputs import Array
from tools.physics.memory import GIB
from tools.scenario import Plan, PlanColumns, PlanFacts, Scenario, check_plan, get_framework
from tools.scenario.spec import PlanValue, sharding
from tools.search.constraints import Constraints, parse_constraints

SLOW_LINK = 0.5
LESS_MEMORY = 0.1


def limit_to_expressible(scenario: Scenario, constraints: Constraints) -> Constraints:
    """The user's constraints, open fields limited to what the configuration can express."""
    if not _is_written(scenario):
        return constraints
    values = get_framework(scenario.training.framework).writable
    return replace(constraints, allowed={**values, **constraints.allowed})


def why_inexpressible(scenario: Scenario, plan: Plan) -> str | None:
    """Why the framework's own configuration cannot express the plan, if that matters."""
    fault = _why_not_written(scenario, plan) if _is_written(scenario) else None
    return str(fault) if fault else None


def _is_written(scenario: Scenario) -> bool:
    return scenario.plan is None or _why_not_written(scenario, scenario.plan) is None


def _why_not_written(scenario: Scenario, plan: Plan) -> InputError | None:
    if not has_own_format(scenario.training.framework):
        return None
    try:
        export_plan(scenario.model_copy(update={"plan": plan}), scenario.training.framework)
    except InputError as error:
        # All plans share the precision: if the configuration lacks it, that is no fault of the plan.
        return error if error.path.startswith("plan.") else None
    return None


def as_searched(plan: Plan) -> Mapping[str, PlanValue]:
    """Without a shard group there is no ZeRO: the search knows such plans by one name only."""
    return {**plan.model_dump(), **sharding(plan.sharding_stage, plan.dp_shard)}


class PredictedPlan(NamedTuple):
    plan: Plan
    prediction: Prediction


@dataclass(frozen=True)
class Workload:
    """A scenario, the limits set on its plans, and the calibration it is predicted with."""

    scenario: Scenario
    constraints: Constraints
    calibration: Calibration
    _predictions: dict[Plan, Prediction] = field(default_factory=dict, init=False, repr=False, compare=False)
    _slowed_s: dict[Plan, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _faults: dict[Plan, InputError | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """A session asks about the same plans again and again."""

    @cached_property
    def device(self) -> Device:
        return scenario_device(self.scenario.cluster)

    @property
    def capacity_gib(self) -> float:
        return float(self.device.memory_bytes) / GIB

    @property
    def limit_gib(self) -> float:
        return self.capacity_gib * self.constraints.max_memory_fraction

    @property
    def pair_error(self) -> float:
        """Log error of the ratio of two predictions of this workload."""
        return self.calibration.intervals.pair_error[self.kind]

    @property
    def kind(self) -> str:
        """Which architecture errors were learned for."""
        return "moe" if self.scenario.model.is_moe else "dense"

    def with_plan(self, plan: Plan) -> Scenario:
        return self.scenario.model_copy(update={"plan": plan, "id": None})

    def with_settings(self, settings: Mapping[str, bool | str]) -> "Workload":
        """With switches of the framework as a proposal sets them."""
        if not settings:
            return self
        training = self.scenario.training.model_copy(update={**settings})
        return replace(self, scenario=self.scenario.model_copy(update={"training": training}))

    def predict(self, plans: Sequence[Plan]) -> list[Prediction]:
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._predictions]
        made = predict([self.with_plan(plan) for plan in new], self.calibration) if new else []
        self._predictions.update(zip(new, made, strict=True))
        return [self._predictions[plan] for plan in plans]

    def on_slow_links(self, plans: Sequence[Plan]) -> list[float]:
        """Seconds per step with a part of the bandwidth between nodes (SLOW_LINK)."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._slowed_s]
        if new:
            costs = self.costs(PlanColumns.of(new), scale_out_bandwidth=SLOW_LINK)
            times_s = np.broadcast_to(costs.step_time_s, len(new)).tolist()
            self._slowed_s.update(zip(new, times_s, strict=True))
        return [self._slowed_s[plan] for plan in plans]

    def today(self) -> PredictedPlan | None:
        """The plan that runs today, if the scenario has one, with its prediction."""
        plan = self.scenario.plan
        return PredictedPlan(plan, self.predict([plan])[0]) if plan else None

    def refusal(self, plan: Plan) -> str | None:
        """Why the framework would refuse the plan, if it would."""
        s = self.scenario
        try:
            check_plan(PlanFacts(s.model, s.cluster, s.training, PlanColumns.of([plan])))
        except InputError as error:
            return str(error)
        return None

    def objection(self, plan: Plan) -> str | None:
        """Why the plan is not proposed whatever its time: it is refused, or cannot be configured."""
        return self.refusal(plan) or self.why_inexpressible(plan)

    def permits(self, plan: Plan) -> bool:
        """Whether the constraints leave this plan in, as the search would."""
        limits, searched = self.constraints, as_searched(plan)
        return all(limits.permits(name, getattr(plan, name)) for name in limits.fields) and not any(
            all(searched[name] == value for name, value in fields.items()) for fields in limits.excluded
        )

    def has_run(self, plan: Plan) -> bool:
        """Whether runs show that the plan fits, whatever its predicted peak."""
        seen = self.calibration.seen
        return bool(seen and any(not run.crashed for run in seen.of_plan(self.with_plan(plan))))

    def has_crashed(self, plan: Plan) -> bool:
        """Whether a run of the plan crashed."""
        seen = self.calibration.seen
        return bool(seen and any(run.crashed for run in seen.of_plan(self.with_plan(plan))))

    def why_unfit(self, planned: PredictedPlan) -> str | None:
        """Why a plan is not expected to run, as said of it; None if it is."""
        prediction = planned.prediction
        if prediction.fits:
            return None
        if self.has_crashed(planned.plan):
            return "crashed"
        if prediction.peak_memory_gib > self.capacity_gib:
            return f"needs {prediction.peak_memory_gib:.1f} GiB of {self.capacity_gib:.1f}"
        return f"is {prediction.fit_probability:.0%} likely to run: plans like it crashed"

    def why_inexpressible(self, plan: Plan) -> str | None:
        fault = self._fault(plan)
        return str(fault) if fault else None

    def is_forced(self, plan: Plan) -> bool:
        """Whether the user's own constraint sets the field that the configuration cannot express."""
        fault = self._fault(plan)
        own = parse_constraints(self.scenario.constraints, self.scenario.plan)
        return fault is not None and fault.path.removeprefix("plan.") in own.fields

    def _fault(self, plan: Plan) -> InputError | None:
        if not self._is_written:
            return None
        if plan not in self._faults:
            self._faults[plan] = _why_not_written(self.scenario, plan)
        return self._faults[plan]

    @cached_property
    def _is_written(self) -> bool:
        return _is_written(self.scenario)

    def fit_probability(self, plans: PlanColumns, memory_bytes: Array) -> Array:
        """That each plan runs."""
        x, keys = encode_plans(self.scenario, plans)
        return self.calibration.fit_probability(x, keys, memory_bytes)

    def costs(self, plans: PlanColumns, **factors: float | Array) -> Costs:
        """Many plans at once; `factors` multiply figures of the device, by their names in `Inputs`."""
        x, keys = encode_plans(self.scenario, plans)
        x = replace(x, **{name: getattr(x, name) * factor for name, factor in factors.items()})
        settings = self.calibration.memory_settings(keys, [self.scenario.training.precision])
        costs = evaluate(x, self.calibration.coefficients(keys), settings)
        return scaled_costs(costs, self.calibration.factor(x, keys))
