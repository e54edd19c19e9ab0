"""What an engineer's free text may change: only what its own words state.

A statement (usually from a language model) counts only if the words it quotes are in the notes, name the
field and contain its value: invented statements and injected instructions cannot restrict the search.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tools.errors import InputError
from tools.recommend.prose_check import numbers_in
from tools.scenario import parse_scenario
from tools.search.constraints import parse_constraints

Data = dict[str, Any]
KEEPING = re.compile(
    r"\b(keep|kept|fixed?|stay|leave|unchanged|same|must not change|do not (change|touch))\b", re.I
)
NAMES = {
    "tp": ("tp", "tensor"),
    "pp": ("pp", "pipeline"),
    "vpp": ("vpp", "virtual", "interleav"),
    "cp": ("cp", "context"),
    "ep": ("ep", "expert"),
    "etp": ("etp", "expert tensor"),
    "dp": ("dp", "data parallel", "data-parallel"),
    "dp_shard": ("dp_shard", "shard", "hsdp"),
    "zero_stage": ("zero", "fsdp"),
    "micro_batch_size": ("micro",),
    "sequence_parallel": ("sequence",),
    "recompute": ("recomput", "checkpoint", "remat"),
    "max_memory_fraction": ("memory",),
    "max_changes": ("change",),
    "keep_checkpoint_layout": ("checkpoint",),
    "oversubscription": ("oversubscri", "over-subscri", "blocking", "taper"),
    "nvlink_domain_size": ("nvlink", "domain"),
    "inter_node_gbps_per_device": ("network", "link", "nic", "infiniband", "bandwidth", "gbit", "gbps"),
    "intra_node_gbytes_per_s_per_device": ("nvlink", "inside the node", "intra"),
    "memory_gib": ("memory", "gib", "gb"),
}  # fmt: skip
SECTIONS = {
    "constraint": ("constraints",),
    "override": ("cluster", "overrides"),
    "topology": ("cluster", "topology"),
}


def apply_notes(notes: str, statements: Sequence[Mapping[str, Any]], scenario: Mapping[str, Any]) -> Data:
    """`accepted` and `refused` statements, and the scenario with the accepted ones applied."""
    accepted: list[Data] = []
    refused: list[Data] = []
    current: Data = dict(scenario)
    for one in statements:
        reason = _unfounded(notes, one, scenario)
        changed = current if reason else _applied(current, one)
        reason = reason or _invalid(changed)
        if reason:
            refused.append({**one, "reason": reason})
        else:
            accepted.append(dict(one))
            current = changed
    return {"accepted": accepted, "refused": refused, "scenario": current}


def _unfounded(notes: str, one: Mapping[str, Any], scenario: Mapping[str, Any]) -> str | None:
    quote, field = _plain(one["quote"]), one["field"]
    if field not in NAMES:
        return f"{field} is not a field that notes may set"
    if not quote or quote not in _plain(notes):
        return "these words do not stand in the notes"
    if not any(_names(word, quote) for word in NAMES[field]):
        return f"these words do not name {field}"
    values = one["value"] if isinstance(one["value"], list) else [one["value"]]
    if all(_stated(value, quote) for value in values):
        return None
    today = (scenario.get("plan") or {}).get(field)
    if today is not None and values == [today] and KEEPING.search(quote):
        return None
    return f"these words do not say {one['value']!r}"


def _names(word: str, quote: str) -> bool:
    """Short names stand alone, longer ones may be part of a word."""
    return bool(re.search(rf"\b{word}\b" if len(word) <= 3 else re.escape(word), quote))


def _stated(value: object, quote: str) -> bool:
    if isinstance(value, bool):
        return value is not bool(re.search(r"\b(no|not|without|off|never)\b", quote))
    if isinstance(value, str):
        return value.lower() in quote
    wanted = float(str(value))
    return any(math.isclose(wanted, said) or math.isclose(wanted, said / 100) for said in numbers_in(quote))


def _applied(scenario: Mapping[str, Any], one: Mapping[str, Any]) -> Data:
    changed: Data = dict(scenario)
    inner = changed
    for name in SECTIONS[one["kind"]]:
        inner[name] = dict(inner.get(name) or {})
        inner = inner[name]
    inner[one["field"]] = one["value"]
    return changed


def _invalid(scenario: Mapping[str, Any]) -> str | None:
    try:
        parsed = parse_scenario(scenario, need_plan=False)
        parse_constraints(parsed.constraints, parsed.plan)
    except InputError as error:
        return str(error)
    return None


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
