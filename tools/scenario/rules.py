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


@cache
def practice_for(framework: str) -> tuple[Rule, ...]:
    """What people do with every framework, then with this one: beyond it plans are legal and rarely run."""
    return tuple(_rule(data) for data in (*get_general_rules("practice"), *get_framework(framework).practice))


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
    """What a reason may quote: the fields of model, cluster and training, those of the first plan, and what
    follows from them."""
    parts = (facts.model, facts.cluster, facts.training)
    codes = {name: int(np.ravel(getattr(facts.plan, name))[0]) for name in SEARCHED_FIELDS}
    return {
        **{name: getattr(part, name) for part in parts for name in type(part).model_fields},
        **{name: decode_value(name, code) for name, code in codes.items()},
        "degrees_product": codes["tp"] * codes["pp"] * codes["cp"] * codes["dp"],
        "data_ranks": codes["dp"] * codes["cp"],
        "stage_ranks": codes["dp"] * codes["cp"] * codes["tp"],
        "shard_ranks": codes["dp_shard"] * codes["tp"],
        "expert_ranks": codes["ep"] * codes["etp"],
        "batch_step": codes["dp"] * codes["micro_batch_size"],
        "chunks": codes["pp"] * codes["vpp"],
        "micro_batches": int(np.ravel(facts.micro_batches)[0]),
        "sequence_split": codes["tp"] * codes["cp"],
    }


def _rule(data: RuleData) -> Rule:
    name = f"{data.field.removeprefix('plan.')}_one_of" if data.check == "one_of" else data.check
    return Rule(name=name, field=data.field, reason=data.reason, source=data.source, breaks=_breaks(data))


def _breaks(data: RuleData) -> Callable[[Facts], BoolArray]:
    plain = vars(checks).get(data.check)
    limited = vars(limits).get(data.check)
    if isinstance(plain, FunctionType):
        return plain
    if isinstance(limited, FunctionType):
        return partial(limited, field=data.field, values=data.values)
    raise DataError(f"kb_seed/frameworks: no check is called {data.check}")
