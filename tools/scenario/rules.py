"""The rules of a framework, for one plan or for millions.

Validating a plan runs the rules on arrays of length one, so search and validation cannot disagree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType

import numpy as np

from tools.errors import DataError, InputError
from tools.scenario import checks, limits
from tools.scenario.columns import BoolArray, Facts, decode_value
from tools.scenario.frameworks import RuleData, get_framework, get_general_rules
from tools.scenario.spec import SEARCHED_FIELDS


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition: `breaks` marks the plans that violate it, `reason` says why, numbers left open."""

    name: str
    field: str
    reason: str
    source: str
    breaks: Callable[[Facts], BoolArray]


@cache
def rules_for(framework: str) -> tuple[Rule, ...]:
    """The general rules, then the framework's own, in the order they are checked."""
    return tuple(_rule(data) for data in (*get_general_rules(), *get_framework(framework).rules))


def legal_mask(facts: Facts) -> BoolArray:
    """Which of the plans obey every rule of the scenario's framework."""
    legal: BoolArray = np.asarray(True)
    for rule in rules_for(facts.training.framework):
        legal = legal & ~rule.breaks(facts)
    return legal


def check_plan(facts: Facts) -> None:
    """Raises InputError for the first rule that the one plan of the facts breaks."""
    for rule in rules_for(facts.training.framework):
        if bool(np.any(rule.breaks(facts))):
            numbers = numbers_of(facts)
            raise InputError(rule.field, numbers[rule.field.split(".")[-1]], rule.reason.format_map(numbers))


def numbers_of(facts: Facts) -> dict[str, object]:
    """What a reason may quote: the fields of model, cluster and training, and of the first plan."""
    numbers: dict[str, object] = {}
    for part in (facts.model, facts.cluster, facts.training):
        numbers |= {name: getattr(part, name) for name in type(part).model_fields}
    for name in SEARCHED_FIELDS:
        numbers[name] = decode_value(name, int(np.ravel(getattr(facts.plan, name))[0]))
    return numbers | _products(numbers, facts)


def _products(numbers: dict[str, object], facts: Facts) -> dict[str, object]:
    """Derived numbers that reasons quote."""
    value = {name: number for name, number in numbers.items() if isinstance(number, int)}
    return {
        "degrees_product": value["tp"] * value["pp"] * value["cp"] * value["dp"],
        "data_ranks": value["dp"] * value["cp"],
        "stage_ranks": value["dp"] * value["cp"] * value["tp"],
        "shard_ranks": value["dp_shard"] * value["tp"],
        "expert_ranks": value["ep"] * value["etp"],
        "batch_step": value["dp"] * value["micro_batch_size"],
        "chunks": value["pp"] * value["vpp"],
        "micro_batches": int(np.ravel(facts.micro_batches)[0]),
        "sequence_split": value["tp"] * value["cp"],
    }


def _rule(data: RuleData) -> Rule:
    name = f"{data.field.removeprefix('plan.')}_one_of" if data.check == "one_of" else data.check
    return Rule(name=name, field=data.field, reason=data.reason, source=data.source, breaks=_breaks(data))


def _breaks(data: RuleData) -> Callable[[Facts], BoolArray]:
    plain, limited = vars(checks).get(data.check), vars(limits).get(data.check)
    if isinstance(plain, FunctionType):
        return plain
    if isinstance(limited, FunctionType):
        return partial(limited, field=data.field, values=data.values)
    raise DataError(f"kb_seed/frameworks: no check is called {data.check}")
