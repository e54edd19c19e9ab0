"""Lexical search and ranking: terms, BM25 over what one tenant may read, fusion with vectors and facets.

Facets weigh and never exclude: a case from another device ranks lower but is still found.

Okapi BM25 (Robertson and Zaragoza, 2009) with Lucene's non-negative inverse document frequency.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import TypeVar

from tools.errors import InputError
from tools.hardware.catalogue import find_vendor
from tools.hardware.device import VENDORS
from tools.kb.entries import ARCHITECTURES, BOTTLENECKS, Entry, Facets, Hit, Match, scale_of
from tools.kb.ledger import without_old_advice
from tools.scenario.frameworks import framework_name

_WORD = re.compile(r"[a-z0-9]+(?:[-_./][a-z0-9]+)*")
_JOINT = re.compile(r"[-_./]")
_JOINT_OF_NUMBERS = re.compile(r"[-_/]")
_CAMEL = re.compile(r"[A-Z](?<=[a-z].)(?=[a-z])")
# Names that would fall apart into words which say nothing and are dropped.
_SPACED = ("all reduce", "all gather", "all to all", "out of memory", "mixture of experts")
_SAME = {"outofmemory": "oom", "mixtureofexperts": "moe"}
_STOP_WORDS = """
a about after all also an and any are as at be been before but by can do does each every few for
from has have how if in into is it its less like many may more most much no not of off on one
only or other our out over per set so some such than that the their them then there these they
this those to too under up us use used using very was we were what when where which while who
why will with would you your
"""
_STOP = frozenset(_STOP_WORDS.split())
_SHORT_FORMS = {
    "tensor parallel": "tp", "pipeline parallel": "pp", "context parallel": "cp", "expert parallel": "ep",
    "data parallel": "dp", "sequence parallel": "sp", "virtual pipeline": "vpp",
    "interleaved pipeline": "vpp", "interleaved schedule": "vpp", "fully sharded": "fsdp",
    "activation checkpointing": "recompute", "gradient checkpointing": "recompute",
    "micro batch": "microbatch", "reduce scatter": "reducescatter",
}  # fmt: skip
# Searched from the shortest stem on, so the longest ending is found.
_ENDING = re.compile("(?:i[zs]ations?|i[zs]ing|i[zs]e[ds]?|ations?|ings?|isms?|ies|es|ed|e|(?<!s)s|y)$")
_MIN_STEM = 4
_DOUBLED = tuple(letter * 2 for letter in "bdgmnprt")
SATURATION = 1.2
"""k1: how soon repeating a term stops counting."""
LENGTH_PENALTY = 0.75
"""b: how much longer texts are held against."""
TITLE_WEIGHT = 2
"""How many occurrences in the text one in the title is worth."""
FACETS = ("device", "architecture", "scale", "bottleneck", "topic", "framework", "vendor")
_ALLOWED = {"architecture": ARCHITECTURES, "bottleneck": BOTTLENECKS, "vendor": VENDORS}
# Weight of each signal; words and meaning count 1 each.
FACETS_WEIGHT = 0.2
STATUS_BONUS = {"confirmed": 0.1, "hypothesis": 0.0, "refuted": 0.0}
Key = TypeVar("Key")


def tokenize(text: str) -> list[str]:
    """The terms of a text in order, repetitions kept; short forms of spelt-out names follow at the end."""
    plain = _CAMEL.sub(r"-\g<0>", text).lower()
    for name in _SPACED:
        plain = plain.replace(name, name.replace(" ", "-"))
    terms = [term for word in _WORD.findall(plain) for term in _terms_of(word)]
    short_forms = _short_forms()
    return terms + [short_forms[pair] for pair in pairwise(terms) if pair in short_forms]


@lru_cache(maxsize=65536)
def _terms_of(word: str) -> tuple[str, ...]:
    """The whole word without its joints, and its parts if it has any; of numbers the parts alone."""
    if word.isalnum():
        return (_stem(word),) if _is_significant(word) else ()
    parts = _JOINT.split(word)
    if all(part.isdigit() for part in parts):
        return tuple(number for number in _JOINT_OF_NUMBERS.split(word) if _is_significant(number))
    whole = "".join(parts)
    return (_SAME.get(whole) or _stem(whole), *(_stem(part) for part in parts if _is_significant(part)))


def _is_significant(word: str) -> bool:
    return len(word) > 1 and word not in _STOP


def _stem(word: str) -> str:
    """Without its ending, where enough remains: shards, sharded and sharding are one term."""
    ending = _ENDING.search(word, _MIN_STEM)
    if not ending:
        return word
    stem = word[: ending.start()]
    return stem[:-1] if stem.endswith(_DOUBLED) else stem


@cache
def _short_forms() -> dict[tuple[str, str], str]:
    spelt = ((names.split(), short) for names, short in _SHORT_FORMS.items())
    return {(_stem(first), _stem(second)): _stem(short) for (first, second), short in spelt}


class LexicalIndex:
    """Term counts of a fixed set of documents, each a title and a text; an earlier index spares counting."""

    def __init__(self, documents: Iterable[tuple[str, str]], earlier: "LexicalIndex | None" = None) -> None:
        listed, known = list(documents), earlier._by_document if earlier else {}
        self._by_document: dict[tuple[str, str], Counter[str]] = {
            document: known.get(document)
            or Counter(tokenize(document[0]) * TITLE_WEIGHT + tokenize(document[1]))
            for document in listed
        }
        self._counts = [self._by_document[document] for document in listed]
        lengths = [counts.total() for counts in self._counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._norms = [
            SATURATION * (1 - LENGTH_PENALTY + LENGTH_PENALTY * length / mean) for length in lengths
        ]

    def scores(self, query: str) -> Sequence[float]:
        """How well each document answers, in the order of the documents; 0 if it shares no term."""
        totals = [0.0] * len(self._counts)
        # Repetition in the query counts logarithmically: reports repeat themselves.
        for term, repetitions in Counter(tokenize(query)).items():
            found = [(place, counts[term]) for place, counts in enumerate(self._counts) if term in counts]
            if not found:
                continue
            weight = math.log1p((len(totals) - len(found) + 0.5) / (len(found) + 0.5)) * (
                1 + math.log(repetitions)
            )
            for place, frequency in found:
                totals[place] += weight * frequency / (frequency + self._norms[place])
        return totals


class TenantIndex:
    """The entries that one tenant sees, indexed; replaced when a record is added to the store."""

    def __init__(
        self,
        entries: Sequence[Entry],
        store_size: int,
        records_read: int = 0,
        earlier: "TenantIndex | None" = None,
    ) -> None:
        self.entries = without_old_advice(entries)
        self.is_cut: bool = len(self.entries) < len(entries) or (earlier is not None and earlier.is_cut)
        self.store_size, self.records_read = store_size, records_read
        self._earlier = earlier.newest_lexical() if earlier else None

    def newest_lexical(self) -> LexicalIndex | None:
        return self.__dict__.get("lexical") or self._earlier

    @cached_property
    def by_id(self) -> dict[str, Entry]:
        return {entry.id: entry for entry in self.entries}

    @cached_property
    def lexical(self) -> LexicalIndex:
        index = LexicalIndex(((entry.title, entry.text) for entry in self.entries), self._earlier)
        self._earlier = None
        return index


def read_facets(stated: Mapping[str, str | int | Sequence[str]] | None) -> Facets:
    """The facets of a query, checked; `num_devices` may be stated instead of a scale."""
    facets: dict[str, tuple[str, ...]] = {}
    for name, value in (stated or {}).items():
        path = f"facets.{name}"
        values = (value,) if isinstance(value, str) else value
        if name == "num_devices":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(path, value, "must be a whole number of at least 1")
            facets["scale"] = (scale_of(value),)
            continue
        if name not in FACETS:
            raise InputError(path, value, f"must be one of {', '.join((*FACETS, 'num_devices'))}")
        if not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
            raise InputError(path, value, "must be a text or a list of texts")
        allowed = _ALLOWED.get(name)
        for item in values:
            if allowed and item not in allowed:
                raise InputError(path, item, f"must be one of {', '.join(allowed)}")
        facets[name] = tuple(map(framework_name, values)) if name == "framework" else tuple(values)
    if "device" in facets and "vendor" not in facets:
        vendors = [vendor for device in facets["device"] if (vendor := find_vendor(device))]
        facets |= {"vendor": tuple(vendors)} if vendors else {}
    return facets


def agreement(wanted: Facets, entry: Facets) -> float:
    """From -1 (every facet contradicts) over 0 (nothing to compare) to 1 (every facet agrees).

    The mean over the facets that both name: an entry for every device is not behind one for this device.
    """
    judged = [bool(set(values) & set(entry[name])) for name, values in wanted.items() if name in entry]
    return sum(1 if agrees else -1 for agrees in judged) / len(judged) if judged else 0.0


def fuse(
    entries: Sequence[Entry],
    lexical: Sequence[float],
    vector: Mapping[str, float],
    wanted: Facets,
    limit: int,
) -> list[Hit]:
    """The best entries, best first; `lexical` is in the order of the entries, `vector` by entry key.

    Facets alone find an entry only when there is nothing else to go by.
    """
    words, meaning = _to_unit(dict(enumerate(lexical))), _to_unit(vector)
    hits = []
    for position, entry in enumerate(entries):
        agreed = agreement(wanted, entry.facets)
        found: dict[Match, bool] = {
            "lexical": position in words,
            "vector": entry.key in meaning,
            "facets": agreed > 0,
        }
        if found["lexical"] or found["vector"] or (agreed > 0 and not words and not meaning):
            score = words.get(position, 0.0) + meaning.get(entry.key, 0.0) + FACETS_WEIGHT * agreed
            matched = tuple(method for method, is_match in found.items() if is_match)
            hits.append(Hit(entry, score + STATUS_BONUS[entry.status], matched))
    hits.sort(key=lambda hit: (-hit.score, hit.entry.id))
    return hits[:limit]


def _to_unit(scores: Mapping[Key, float]) -> dict[Key, float]:
    """Only what scored at all, divided by the best."""
    best = max(scores.values(), default=0.0)
    return {key: score / best for key, score in scores.items() if score > 0} if best > 0 else {}
