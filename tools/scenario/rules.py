"""The rules of a framework, for one plan or for millions.

Validating a plan runs the rules on arrays of length one, so search and validation cannot disagree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from tools.errors import DataError, InputError
from tools.scenario.checks import CHECKS
from tools.scenario.columns import BoolArray, PlanColumns, PlanFacts, decode_value
from tools.scenario.frameworks import RuleData, get_framework, get_general_rules
from tools.scenario.limits import LIMITS
from tools.scenario.model import ModelSpec
from tools.scenario.spec import AXES, SEARCHED_FIELDS, ClusterSpec, TrainingSpec

FRAMEWORK_FIELD = "training.framework"
"""What a rule names that no plan can obey."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition: `breaks` marks the plans that violate it, `reason` says why, numbers left open."""

    name: str
    field: str
    reason: str
    source: str
    breaks: Callable[[PlanFacts], BoolArray]


@cache
def rules_for(framework: str) -> tuple[Rule, ...]:
    """The general rules, then the framework's own, in the order they are checked."""
    return tuple(make_rule(data) for data in (*get_general_rules(), *get_framework(framework).rules))


@cache
def practice_for(framework: str) -> tuple[Rule, ...]:
    """What people do with every framework, then with this one: beyond it plans are legal and rarely run."""
    return tuple(
        make_rule(data) for data in (*get_general_rules("practice"), *get_framework(framework).practice)
    )


def legal_mask(facts: PlanFacts) -> BoolArray:
    """Which of the plans obey every rule of the scenario's framework."""
    legal: BoolArray = np.asarray(True)
    for rule in rules_for(facts.training.framework):
        legal = legal & ~rule.breaks(facts)
    return legal


def check_plan(facts: PlanFacts) -> None:
    """Raises InputError for the first rule that the one plan of the facts breaks."""
    for rule in rules_for(facts.training.framework):
        if bool(np.any(rule.breaks(facts))):
            numbers = numbers_of(facts)
            raise InputError(rule.field, numbers[rule.field.split(".")[-1]], rule.reason.format_map(numbers))


def check_framework(model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec) -> None:
    """Raises InputError if the framework cannot train the model, whatever the plan."""
    facts = PlanFacts(model, cluster, training, PlanColumns())
    for rule in rules_for(training.framework):
        if rule.field == FRAMEWORK_FIELD and np.any(rule.breaks(facts)):
            raise InputError(rule.field, training.framework, rule.reason)


def numbers_of(facts: PlanFacts) -> dict[str, object]:
    """What a reason may quote: fields of model, cluster, training, first plan, and what follows from them."""
    parts = (facts.model, facts.cluster, facts.training)
    codes = {name: int(np.ravel(getattr(facts.plan, name))[0]) for name in SEARCHED_FIELDS}
    step, batch = codes["dp"] * codes["micro_batch_size"], facts.training.global_batch_size
    near = [str(count * step) for count in (batch // step, batch // step + 1) if count]
    return {
        **{name: getattr(part, name) for part in parts for name in type(part).model_fields},
        **{name: decode_value(name, code) for name, code in codes.items()},
        "axes": " * ".join(AXES),
        "axis_sizes": " * ".join(str(codes[name]) for name in AXES),
        "degrees_product": math.prod(codes[name] for name in AXES),
        "data_ranks": codes["dp"] * codes["cp"],
        "stage_ranks": codes["dp"] * codes["cp"] * codes["tp"],
        "shard_ranks": codes["dp_shard"] * codes["tp"],
        "expert_ranks": codes["ep"] * codes["etp"],
        "batch_step": step,
        "batches_near": " or ".join(near),
        "chunks": codes["pp"] * codes["vpp"],
        "micro_batches": int(np.ravel(facts.micro_batches)[0]),
        "sequence_split": codes["tp"] * codes["cp"],
    }


def make_rule(data: RuleData) -> Rule:
    """The rule of a row of the data files."""
    field = data.field.removeprefix("plan.")
    if data.check not in CHECKS and data.check not in LIMITS:
        raise DataError(f"kb_seed/frameworks: no check is called {data.check}")

    def breaks(facts: PlanFacts) -> BoolArray:
        check = CHECKS.get(data.check)
        return check(facts) if check else LIMITS[data.check](facts, field, data.values)

    name = f"{field}_one_of" if data.check == "one_of" else data.check
    return Rule(name=name, field=data.field, reason=data.reason, source=data.source, breaks=breaks)
