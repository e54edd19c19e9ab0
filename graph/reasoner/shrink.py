"""A payload with its least important parts left out, for a model whose context it does not fit."""

from collections.abc import Mapping
from typing import Any

LEFT_OUT = frozenset(
    (
        "body", "breakdown_s", "considered", "effect", "evidence", "facets", "hits", "memory_gib", "pareto",
        "profile", "rejected", "risks", "searched", "sources", "symptoms", "traces", "when",
    )
)  # fmt: skip
"""Evidence lists, texts of the knowledge base, details of a prediction: what the answer can do without."""
KEPT_LISTS = frozenset({"options", "competing", "proposals", "resolved_moves", "refused"})
MOST_ITEMS = 3
MOST_CHARACTERS = 300
MOST_NOTES_CHARACTERS = 4000


def shrunk(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The order and the names stay; what is cut ends in an ellipsis."""
    return {name: _cut(name, part) for name, part in payload.items() if name not in LEFT_OUT}


def _cut(name: str, part: object) -> object:
    if isinstance(part, Mapping):
        return shrunk(part)
    if isinstance(part, list | tuple):
        kept = part if name in KEPT_LISTS else part[:MOST_ITEMS]
        return [_cut(name, one) for one in kept]
    if isinstance(part, str):
        most = MOST_NOTES_CHARACTERS if name == "notes" else MOST_CHARACTERS
        return part if len(part) <= most else part[:most] + "…"
    return part
