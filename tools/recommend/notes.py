"""What an engineer's free text may change: only what its own words state.

A statement (usually from a language model) counts only if the words it quotes are in the notes, name the
field and contain its value: invented statements and injected instructions cannot restrict the search.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tools.errors import InputError
from tools.recommend.prose_check import numbers_in
from tools.recommend.report import Statement
from tools.scenario import Scenario, parse_scenario
from tools.scenario.spec import PLAN_ROLES
from tools.search.constraints import parse_constraints

KEEPING = re.compile(
    r"\b(keep|kept|fixed?|stay|leave|unchanged|same|must not change|do not (change|touch))\b", re.I
)
NAMES = {
    **{name: role.words for name, role in PLAN_ROLES.items() if role.words},
    "max_memory_fraction": ("memory",),
    "max_changes": ("change",),
    "keep_checkpoint_layout": ("checkpoint",),
    "oversubscription": ("oversubscri", "over-subscri", "blocking", "taper"),
    "nvlink_domain_size": ("nvlink", "domain"),
    "inter_node_gbps_per_device": ("network", "link", "nic", "infiniband", "bandwidth", "gbit", "gbps"),
    "intra_node_gbytes_per_s_per_device": ("nvlink", "inside the node", "intra"),
    "memory_gib": ("memory", "gib", "gb"),
}
"""How free text may name what it sets."""
SECTIONS = {
    "constraint": ("constraints",),
    "override": ("cluster", "overrides"),
    "topology": ("cluster", "topology"),
}


class AppliedNotes(NamedTuple):
    accepted: list[Statement]
    refused: list[Statement]
    scenario: Scenario
    """With the accepted statements applied."""


def apply_notes(notes: str, statements: Sequence[Statement], scenario: Scenario) -> AppliedNotes:
    accepted: list[Statement] = []
    refused: list[Statement] = []
    current = scenario
    for statement in statements:
        reason = _unfounded(notes, statement, scenario)
        if reason is None:
            try:
                current = _applied(current, statement)
            except InputError as error:
                reason = str(error)
        if reason is None:
            accepted.append(statement)
        else:
            refused.append(statement.model_copy(update={"reason": reason}))
    return AppliedNotes(accepted, refused, current)


def _unfounded(notes: str, statement: Statement, scenario: Scenario) -> str | None:
    quote, field = _plain(statement.quote), statement.field
    if field not in NAMES:
        return f"{field} is not a field that notes may set"
    if not quote or quote not in _plain(notes):
        return "these words are not in the notes"
    if not any(_names(word, quote) for word in NAMES[field]):
        return f"these words do not name {field}"
    values = statement.value if isinstance(statement.value, list) else [statement.value]
    if all(_is_stated(value, quote) for value in values):
        return None
    today = getattr(scenario.plan, field, None)
    if today is not None and values == [today] and KEEPING.search(quote):
        return None
    return f"these words do not say {statement.value!r}"


def _names(word: str, quote: str) -> bool:
    """Short names stand alone, longer ones may be part of a word."""
    return bool(re.search(rf"\b{word}\b" if len(word) <= 3 else re.escape(word), quote))


def _is_stated(value: object, quote: str) -> bool:
    if isinstance(value, bool):
        return value is not bool(re.search(r"\b(no|not|without|off|never)\b", quote))
    if isinstance(value, str):
        return value.lower() in quote
    wanted = float(str(value))
    return any(
        math.isclose(wanted, number) or math.isclose(wanted, number / 100) for number in numbers_in(quote)
    )


def _applied(scenario: Scenario, statement: Statement) -> Scenario:
    """Raises InputError if the scenario cannot be so."""
    changed = scenario.model_dump(mode="json", exclude_defaults=True)
    section = changed
    for name in SECTIONS[statement.kind]:
        section = section.setdefault(name, {})
    section[statement.field] = statement.value
    parsed = parse_scenario(changed, need_plan=False)
    parse_constraints(parsed.constraints, parsed.plan)
    return parsed


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
