"""When a playbook applies: conditions over facts, as data.

A condition names a fact and a comparison, `{fact = "tp", above = 8}`, or a range, `{fact = "tp", above = 1,
at_most = 8}`. All conditions of a playbook must hold. What is not known does not hold: an absent fact, or one
of another kind, makes its condition false.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tools.kb.entry import Entry
from tools.kb.facts import FACTS, FLAGS, NUMBERS, TEXTS
from tools.kb.shape import Fault, is_number, number, text

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
        raise Fault(f"{path}.fact", fact, "is not a fact of a situation (tools/kb/facts.py lists them)")
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
