"""What one reader may see, ready to be searched: term statistics come from these entries and no others."""

from collections.abc import Sequence
from functools import cached_property

from tools.kb.entry import Entry
from tools.kb.lexical import LexicalIndex


class Shelf:
    """A fixed set of entries; made anew when a record is added to the store."""

    def __init__(self, entries: Sequence[Entry], store_size: int) -> None:
        self.entries = entries
        self.store_size = store_size

    @cached_property
    def by_id(self) -> dict[str, Entry]:
        return {entry.id: entry for entry in self.entries}

    @cached_property
    def lexical(self) -> LexicalIndex:
        return LexicalIndex((entry.title, entry.text) for entry in self.entries)
