"""BM25 over the texts that one reader may see.

Okapi BM25 (Robertson and Zaragoza, 2009) with the inverse document frequency that Lucene uses, which is
never negative. Our own and in plain Python: the libraries at hand load NumPy, and a command that reads the
seed of about 250 texts is done before NumPy is imported.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tools.kb.tokens import tokenize

SATURATION = 1.2
"""k1: how soon repeating a term stops counting."""
LENGTH_PENALTY = 0.75
"""b: how much longer texts are held against."""
TITLE_WEIGHT = 2
"""A term in the title counts as so many in the text."""


class LexicalIndex:
    """Term counts of a fixed set of documents, each a title and a text."""

    def __init__(self, documents: Iterable[tuple[str, str]]) -> None:
        self._counts = [_count(title, text) for title, text in documents]
        lengths = [counts.total() for counts in self._counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._norms = [
            SATURATION * (1 - LENGTH_PENALTY + LENGTH_PENALTY * length / mean) for length in lengths
        ]

    def scores(self, query: str) -> Sequence[float]:
        """How well each document answers, in the order of the documents; 0 where it shares no term."""
        totals = [0.0] * len(self._counts)
        # A term that the query repeats counts once more, but less and less: reports repeat themselves.
        for term, asked in Counter(tokenize(query)).items():
            frequencies = [counts.get(term, 0) for counts in self._counts]
            found = sum(1 for frequency in frequencies if frequency)
            if not found:
                continue
            weight = math.log1p((len(totals) - found + 0.5) / (found + 0.5)) * (1 + math.log(asked))
            for position, frequency in enumerate(frequencies):
                if frequency:
                    totals[position] += weight * frequency / (frequency + self._norms[position])
        return totals


def _count(title: str, text: str) -> Counter[str]:
    counts = Counter(tokenize(text))
    for term in tokenize(title):
        counts[term] += TITLE_WEIGHT
    return counts
