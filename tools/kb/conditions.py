"""When a playbook applies: conditions over named facts, as data.

A condition names a fact and a comparison, `{fact = "tp", above = 8}`, or a range.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tools.kb.entries import Entry, Fault, is_number, number, text

PLAN_FLAGS = ("sequence_parallel",)
PLAN_COUNTS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "zero_stage", "micro_batch_size")
PLAN_WORDS = {
    "recompute": ("none", "selective", "full"),
    "schedule": ("1f1b", "interleaved", "zero_bubble", "gpipe"),
}
PLAN_FIELDS = (*PLAN_COUNTS, *PLAN_FLAGS, *PLAN_WORDS)
MOVE_WORDS = ("x2", "/2", "devices_per_node", "num_devices", "all_data_ranks")
"""Values of a move that depend on the plan it is applied to; all_data_ranks is dp * cp."""

TEXTS = frozenset({
    "architecture", "vendor", "device", "framework", "precision", "recompute", "bottleneck",
    "profile.bottleneck", "profile.straggler_cause",
})  # fmt: skip
FLAGS = frozenset({
    "sliding_window", "fp8_capable", "flash_attention", "sequence_parallel", "fits",
    "tp_spans_nodes", "cp_spans_nodes", "ep_spans_nodes", "dp_shard_spans_nodes",
    "profiled", "profile.straggler",
})  # fmt: skip
STEP_PARTS = (
    "compute", "memory_bound_ops", "tp_comm_exposed", "cp_comm_exposed", "ep_comm_exposed",
    "dp_comm_exposed", "pp_comm_exposed", "pipeline_bubble", "optimizer", "host_and_other",
)  # fmt: skip
NUMBERS = frozenset({
    "parameters_b", "layers", "hidden_size", "kv_heads", "num_experts", "experts_per_token",
    "num_devices", "devices_per_node", "nodes", "oversubscription", "memory_gib",
    "seq_len", "global_batch_size", *PLAN_COUNTS,
    "micro_batches", "heads_per_tp", "tokens_per_micro_batch",
    "mfu", "memory_fraction", "activation_fraction", *(f"share.{part}" for part in STEP_PARTS),
    "profile.exposed_communication_ratio", "profile.idle_ratio", "profile.memory_ratio",
    "profile.overlap_ratio",
})  # fmt: skip
FACTS = TEXTS | FLAGS | NUMBERS


_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}
OPERATORS = ("is", "one_of", *_ORDER)


def matching(facts: Mapping[str, object], playbooks: Iterable[Entry]) -> list[Entry]:
    """The playbooks whose conditions all hold, in the order given."""
    return [entry for entry in playbooks if applies(entry.body["when"], facts)]


def applies(conditions: Iterable[Mapping[str, Any]], facts: Mapping[str, object]) -> bool:
    """Whether all hold; no condition at all is advice that always applies."""
    return all(holds(condition, facts) for condition in conditions)


def holds(condition: Mapping[str, Any], facts: Mapping[str, object]) -> bool:
    """Whether this is true of the facts."""
    fact = facts.get(condition["fact"])
    if fact is None:
        return False
    if "is" in condition:
        return _equal(fact, condition["is"])
    if "one_of" in condition:
        return any(_equal(fact, value) for value in condition["one_of"])
    return is_number(fact) and all(
        compare(fact, condition[name]) for name, compare in _ORDER.items() if name in condition
    )


def condition(path: str, value: object) -> None:
    """Checks that this is a condition which could hold: a known fact and a comparison that fits its kind."""
    if not isinstance(value, Mapping):
        raise Fault(path, value, 'must be a table such as {fact = "tp", above = 8}')
    fact = value.get("fact")
    if not isinstance(fact, str) or fact not in FACTS:
        raise Fault(f"{path}.fact", fact, "is not a fact of a situation (tools/kb/conditions.py lists them)")
    names = value.keys() - {"fact"}
    if not names or not names <= set(OPERATORS) or (len(names) > 1 and not names <= _ORDER.keys()):
        raise Fault(
            path, dict(value), f"must have one of {', '.join(OPERATORS)} besides its fact, or a range"
        )
    for name in sorted(names):
        _check_comparison(f"{path}.{name}", fact, name, value[name])


def _check_comparison(path: str, fact: str, name: str, value: object) -> None:
    if name in _ORDER:
        if fact not in NUMBERS:
            raise Fault(path, value, f"{fact} is not a number: use is or one_of")
        number(path, value)
        return
    if name == "is":
        _check_value(path, fact, value)
        return
    if not isinstance(value, list) or not value:
        raise Fault(path, value, "must be a list of values")
    for item in value:
        _check_value(path, fact, item)


def _check_value(path: str, fact: str, value: object) -> None:
    if fact in FLAGS and not isinstance(value, bool):
        raise Fault(path, value, f"{fact} is true or false")
    if fact in NUMBERS:
        number(path, value)
    if fact in TEXTS:
        text(200)(path, value)


def _equal(fact: object, value: object) -> bool:
    """Equal and of one kind: true is not 1, though Python says so."""
    return isinstance(fact, bool) == isinstance(value, bool) and fact == value
