"""What goes wrong with the knowledge base and is neither the caller's input nor a data file.

AsapError
└── KnowledgeError      the store cannot be opened, read or written
    └── EmbeddingError  an embedder gives no vectors; a search goes on without them
"""

from tools.errors import AsapError


class KnowledgeError(AsapError):
    """The store of cases does not answer, or answers what cannot be used."""


class EmbeddingError(KnowledgeError):
    """Texts could not be turned into vectors."""
