"""One order out of three opinions: shared words, nearness of meaning, agreement of facets.

Scores of one kind are brought to 0..1 within the search and added with weights (a convex combination: it
keeps how far apart the candidates are, which fusing by ranks throws away; Bruch, Gai and Ingber, 2023,
"An Analysis of Fusion Functions for Hybrid Retrieval"). A confirmed entry gets a little on top.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tools.kb.entry import Entry, Facets, Hit, Match
from tools.kb.facets import agreement

Key = TypeVar("Key")
# How much each opinion counts; words and meaning count one each.
FACETS_WEIGHT = 0.2
STATUS_BONUS = {"confirmed": 0.1, "hypothesis": 0.0, "refuted": 0.0}


def fuse(
    entries: Sequence[Entry],
    lexical: Sequence[float],
    vector: Mapping[str, float],
    asked: Facets,
    limit: int,
) -> list[Hit]:
    """The best entries, best first; `lexical` is in the order of the entries, `vector` by entry key.

    Facets alone find an entry only when there is nothing else to go by.
    """
    words, meaning = _to_unit(dict(enumerate(lexical))), _to_unit(vector)
    hits = []
    for position, entry in enumerate(entries):
        word, sense = words.get(position, 0.0), meaning.get(entry.key, 0.0)
        agreed = agreement(asked, entry.facets)
        found = position in words or entry.key in meaning
        if found or (agreed > 0 and not words and not meaning):
            score = word + sense + FACETS_WEIGHT * agreed
            matched = _matched(lexical=position in words, vector=entry.key in meaning, facets=agreed > 0)
            hits.append(Hit(entry, score + STATUS_BONUS[entry.status], matched))
    hits.sort(key=lambda hit: (-hit.score, hit.entry.id))
    return hits[:limit]


def _matched(**found: bool) -> tuple[Match, ...]:
    return tuple(name for name, yes in found.items() if yes)  # type: ignore[misc]


def _to_unit(scores: Mapping[Key, float]) -> dict[Key, float]:
    """Only what scored at all, divided by the best."""
    best = max(scores.values(), default=0.0)
    return {key: score / best for key, score in scores.items() if score > 0} if best > 0 else {}
