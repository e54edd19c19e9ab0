"""The knowledge base: playbooks and past cases, found by words, meaning and facets.

Covers reading the seed, search, the conditions of playbooks and the store of cases. Not here: the texts
themselves (`kb_seed/`), the facts of a situation, and the use of what is found.
"""

from tools.kb.base import KnowledgeBase, matching, open_folder, open_seed, open_server
from tools.kb.embed import Embedder, find_local_embedder
from tools.kb.entries import Case, EmbeddingError, Entry, Hit, KnowledgeError, Playbook

__all__ = [
    "Case",
    "Embedder",
    "EmbeddingError",
    "Entry",
    "Hit",
    "KnowledgeBase",
    "KnowledgeError",
    "Playbook",
    "find_local_embedder",
    "matching",
    "open_folder",
    "open_seed",
    "open_server",
]
