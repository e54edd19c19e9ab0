"""When a playbook applies: conditions over named facts, as data.

A condition names a fact and a comparison, `{fact = "tp", above = 8}`, or a range.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Self, TypeGuard

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tools.physics.terms import STEP_TERMS
from tools.scenario.fields import FromList, StrictModel
from tools.scenario.spec import Plan

PLAN_COUNTS = tuple(name for name, field in Plan.model_fields.items() if field.annotation is int)
TEXTS = frozenset({
    "architecture", "vendor", "device", "framework", "precision", "recompute", "bottleneck",
    "profile.bottleneck", "profile.straggler_cause",
})  # fmt: skip
FLAGS = frozenset({
    "sliding_window", "fp8_capable", "flash_attention", "sequence_parallel", "fits",
    "tp_spans_nodes", "cp_spans_nodes", "ep_spans_nodes", "dp_shard_spans_nodes",
    "profiled", "profile.straggler",
})  # fmt: skip
NUMBERS = frozenset({
    "parameters_b", "layers", "hidden_size", "kv_heads", "num_experts", "experts_per_token",
    "num_devices", "devices_per_node", "nodes", "oversubscription", "memory_gib",
    "seq_len", "global_batch_size", *PLAN_COUNTS,
    "micro_batches", "heads_per_tp", "tokens_per_micro_batch",
    "mfu", "memory_fraction", "activation_fraction", *(f"share.{part}" for part in STEP_TERMS),
    "profile.exposed_communication_ratio", "profile.idle_ratio", "profile.memory_ratio",
    "profile.overlap_ratio",
})  # fmt: skip
FACTS = TEXTS | FLAGS | NUMBERS

_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}
OPERATORS = ("is", "one_of", *_ORDER)

Scalar = bool | int | float | str
FactValues = Mapping[str, object]
"""What is known of a situation, by the name of the fact; a value of another kind meets no condition."""


def _is_absent(value: object) -> bool:
    return value is None


class Condition(StrictModel):
    """One comparison with a fact, or a range: `{fact = "tp", above = 8}`.

    Operators that are absent are not written either, so that what is written can be read back.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    fact: str
    is_: Scalar | None = Field(None, alias="is", exclude_if=_is_absent)
    one_of: Annotated[tuple[Scalar, ...], FromList, Field(min_length=1)] | None = Field(
        None, exclude_if=_is_absent
    )
    at_least: int | float | None = Field(None, exclude_if=_is_absent)
    at_most: int | float | None = Field(None, exclude_if=_is_absent)
    above: int | float | None = Field(None, exclude_if=_is_absent)
    below: int | float | None = Field(None, exclude_if=_is_absent)

    @model_validator(mode="after")
    def _compares(self) -> Self:
        names = self.model_fields_set - {"fact"}
        if not names or (len(names) > 1 and not names <= _ORDER.keys()):
            raise ValueError(f"must have one of {', '.join(OPERATORS)} besides its fact, or a range")
        return self

    def holds(self, facts: FactValues) -> bool:
        """Whether this is true of the facts; an unknown fact makes it false."""
        fact = facts.get(self.fact)
        if fact is None:
            return False
        if self.is_ is not None:
            return _equal(fact, self.is_)
        if self.one_of is not None:
            return any(_equal(fact, value) for value in self.one_of)
        bounds = ((compare, getattr(self, name)) for name, compare in _ORDER.items())
        return _is_number(fact) and all(
            compare(fact, bound) for compare, bound in bounds if bound is not None
        )


def _check_fact(condition: Condition) -> Condition:
    """Refuses a condition that no situation could meet: an unknown fact, or a value of another kind."""
    fact = condition.fact
    if fact not in FACTS:
        reason = "is not a fact of a situation (tools/kb/conditions.py lists them)"
        raise PydanticCustomError("entry", "{reason}", {"reason": reason, "path": ".fact", "given": fact})
    if fact not in NUMBERS and condition.model_fields_set & _ORDER.keys():
        raise ValueError(f"{fact} is not a number: use is or one_of")
    for value in condition.one_of or (() if condition.is_ is None else (condition.is_,)):
        is_right = isinstance(value, str) if fact in TEXTS else isinstance(value, bool)
        if not (_is_number(value) if fact in NUMBERS else is_right):
            kind = "a number" if fact in NUMBERS else "a text" if fact in TEXTS else "true or false"
            raise ValueError(f"{fact} is {kind}")
    return condition


PlaybookCondition = Annotated[Condition, AfterValidator(_check_fact)]


def parse_conditions(rows: Iterable[object]) -> tuple[Condition, ...]:
    """Conditions over facts of any name."""
    return tuple(Condition.model_validate(row) for row in rows)


def applies(conditions: Iterable[Condition], facts: FactValues) -> bool:
    """Whether all hold; no condition at all is advice that always applies."""
    return all(condition.holds(facts) for condition in conditions)


def _is_number(value: object) -> TypeGuard[float]:
    # bool is an int to Python, and a condition "at least true" is a mistake.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(fact: object, value: object) -> bool:
    """Equal and of one kind: true is not 1, though Python says so."""
    return isinstance(fact, bool) == isinstance(value, bool) and fact == value
