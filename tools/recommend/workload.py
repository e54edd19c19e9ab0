"""One scenario with what every part of a recommendation needs: device, calibration, predictions.

Also which plans the framework's own configuration can express: others are not proposed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.encode import encode_plans, scenario_device
from tools.cost.inputs import Array
from tools.cost.memory import GIB
from tools.cost.predict import Costs, Prediction, evaluate, predict, scaled_costs
from tools.errors import InputError
from tools.frameworks import export_plan
from tools.hardware import Device
from tools.scenario import Facts, Plan, PlanColumns, Scenario, check_plan, columns_of, get_framework
from tools.search.constraints import Constraints

CONFIGURED = ("torchtitan", "megatron-core", "deepspeed", "maxtext", "nanotron")
"""Frameworks that read a configuration which decides the whole plan; plain FSDP is a program's own code."""


def limit_to_expressible(scenario: Scenario, constraints: Constraints) -> Constraints:
    """The user's constraints, open fields limited to what the configuration can express."""
    if not _is_written(scenario):
        return constraints
    values = get_framework(scenario.training.framework).writable
    return replace(constraints, allowed={**values, **constraints.allowed})


def why_inexpressible(scenario: Scenario, plan: Plan) -> str | None:
    """Why the framework's own configuration cannot express the plan, if that matters."""
    return _why_not_written(scenario, plan) if _is_written(scenario) else None


def _is_written(scenario: Scenario) -> bool:
    return scenario.plan is None or _why_not_written(scenario, scenario.plan) is None


def _why_not_written(scenario: Scenario, plan: Plan) -> str | None:
    if scenario.training.framework not in CONFIGURED:
        return None
    try:
        export_plan(scenario.model_copy(update={"plan": plan}), scenario.training.framework)
    except InputError as error:
        # All plans share the precision: if the configuration lacks it, that is no fault of the plan.
        return str(error) if error.field.startswith("plan.") else None
    return None


SLOW_LINK = 0.5


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
    _faults: dict[Plan, str | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A session asks about the same plans again and again."""

    @classmethod
    def of(
        cls, scenario: Scenario, constraints: Constraints, calibration: Calibration | None = None
    ) -> "Workload":
        return cls(scenario, constraints, calibration or shipped_calibration())

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
        return self.calibration.intervals.pair_error["moe" if self.scenario.model.is_moe else "dense"]

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
        self._predictions.update(zip(new, self.predict_anew(new), strict=True))
        return [self._predictions[plan] for plan in plans]

    def predict_anew(self, plans: Sequence[Plan]) -> list[Prediction]:
        """For a check: what was predicted before is not looked at."""
        return predict([self.with_plan(plan) for plan in plans], self.calibration) if plans else []

    def on_slow_links(self, plans: Sequence[Plan]) -> list[float]:
        """Seconds per step with a part of the bandwidth between nodes (SLOW_LINK)."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._slowed_s]
        if new:
            costs = self.costs(columns_of(new), scale_out_bandwidth=SLOW_LINK)
            self._slowed_s.update(
                zip(new, np.broadcast_to(costs.step_time_s, len(new)).tolist(), strict=True)
            )
        return [self._slowed_s[plan] for plan in plans]

    def today(self) -> PredictedPlan | None:
        """The plan that runs today, if the scenario has one, with its prediction."""
        plan = self.scenario.plan
        return PredictedPlan(plan, self.predict([plan])[0]) if plan else None

    def refusal(self, plan: Plan) -> str | None:
        """Why the framework would refuse the plan, if it would."""
        s = self.scenario
        try:
            check_plan(Facts(s.model, s.cluster, s.training, columns_of([plan])))
        except InputError as error:
            return str(error)
        return None

    def objection(self, plan: Plan) -> str | None:
        """Why the plan is not proposed whatever its time: it is refused, or cannot be configured."""
        return self.refusal(plan) or self.why_inexpressible(plan)

    def why_inexpressible(self, plan: Plan) -> str | None:
        if not self._is_written:
            return None
        if plan not in self._faults:
            self._faults[plan] = _why_not_written(self.scenario, plan)
        return self._faults[plan]

    @cached_property
    def _is_written(self) -> bool:
        return _is_written(self.scenario)

    def costs(
        self, plans: PlanColumns, carried: Mapping[str, float] | None = None, **factors: float | Array
    ) -> Costs:
        """Many plans at once, by their names in `Inputs`: `carried` replaces what all of them do, `factors`
        multiply figures of device or plan."""
        x, keys = encode_plans(self.scenario, plans)
        x = replace(x, **{name: np.asarray(value) for name, value in (carried or {}).items()})
        x = replace(x, **{name: getattr(x, name) * factor for name, factor in factors.items()})
        settings = self.calibration.memory_settings(keys, [self.scenario.training.precision])
        costs = evaluate(x, self.calibration.coefficients(keys), settings)
        return scaled_costs(costs, self.calibration.factor(x, keys))
