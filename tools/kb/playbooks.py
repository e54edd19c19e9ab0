"""From the plain data of one playbook to an `Entry`; a `Fault` names the field that is wrong."""

from collections.abc import Mapping
from typing import Any

from tools.kb.conditions import condition
from tools.kb.entry import ARCHITECTURES, BOTTLENECKS, VENDORS, Entry
from tools.kb.facts import MOVE_WORDS, PLAN_COUNTS, PLAN_FIELDS, PLAN_FLAGS, PLAN_WORDS
from tools.kb.shape import Check, Fault, Table, line, list_of, one_of, prose, slug, text

SOURCE = Table({"title": text(300), "where": text(500)})


def plan_value(path: str, value: object) -> None:
    """A value that this field of a plan can have."""
    field = path.rpartition(".")[2]
    if field in PLAN_COUNTS:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**6
    else:
        fits = isinstance(value, bool) if field in PLAN_FLAGS else value in PLAN_WORDS[field]
    if not fits:
        raise Fault(path, value, f"is not a value of {field} in a plan")


def move_value(path: str, value: object) -> None:
    """The new value of a plan field, or for a degree a word that depends on the plan."""
    if path.rpartition(".")[2] not in PLAN_COUNTS or value not in MOVE_WORDS:
        plan_value(path, value)


def _moves(path: str, value: object) -> None:
    # dp follows from the device count and the other degrees.
    change = Table({}, {field: move_value for field in PLAN_FIELDS if field != "dp"})
    list_of(change, at_least=1)(path, value)
    for position, move in enumerate(value if isinstance(value, list) else []):
        if not move:
            raise Fault(f"{path}[{position}]", move, "must change a field")


def _facet(*allowed: str) -> Check:
    return list_of(one_of(*allowed), at_least=1)


PLAYBOOK = Table(
    {
        "id": slug, "title": line, "when": list_of(condition), "symptoms": prose, "do": prose,
        "why": prose, "effect": prose, "risks": list_of(prose, at_least=1),
        "sources": list_of(SOURCE, at_least=1),
    },
    {
        "moves": _moves,
        "facets": Table({}, {
            "bottleneck": _facet(*BOTTLENECKS),
            "architecture": _facet(*ARCHITECTURES),
            "vendor": _facet(*VENDORS),
        }),
    },
)  # fmt: skip


def parse_playbook(topic: str, data: Mapping[str, Any]) -> Entry:
    """The playbook of this plain data; its topic is a facet of it."""
    PLAYBOOK("", data)
    facets = {name: tuple(values) for name, values in data.get("facets", {}).items()}
    return Entry(
        id=data["id"],
        kind="playbook",
        title=data["title"],
        text="\n".join(data[field] for field in ("symptoms", "do", "why", "effect")),
        facets={**facets, "topic": (topic,)},
        status="confirmed",
        tenant=None,
        body=data,
        is_seed=True,
    )
