"""The knowledge base: playbooks and past cases, found by words, meaning and facets.

Covers reading the seed, search, the conditions of playbooks and the memory of cases. Not here: the texts
themselves (`kb_seed/`), the facts of a situation, and what to do with what was found.
"""

from tools.kb.base import KnowledgeBase, open_folder, open_seed, open_server
from tools.kb.conditions import matching
from tools.kb.embed import Embedder, find_local_embedder
from tools.kb.entries import EmbeddingError, Entry, Hit, KnowledgeError

__all__ = [
    "Embedder",
    "EmbeddingError",
    "Entry",
    "Hit",
    "KnowledgeBase",
    "KnowledgeError",
    "find_local_embedder",
    "matching",
    "open_folder",
    "open_seed",
    "open_server",
]
