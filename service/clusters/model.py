"""Measured runs of the clusters, and what was learned from them."""

import sqlalchemy as sa

from service.db.tables import Digest, Id, JsonColumn, key, metadata, optional, required

measurements = sa.Table(
    "measurements",
    metadata,
    *key(Id, "id"),
    *required(sa.Text, "tenant", "cluster"),
    *required(sa.Integer, "version"),
    *required(sa.Text, "reported_by"),
    *required(sa.Double, "created_at"),
    *optional(sa.Double, "undone_at"),
    *required(Digest, "digest"),
    *required(JsonColumn, "run"),
    sa.Index("measurements_by_cluster", "tenant", "cluster", "version"),
)
"""Runs of a cluster; those reported at once share a version, and are undone together."""

cluster_fits = sa.Table(
    "cluster_fits",
    metadata,
    *key(sa.Text, "tenant", "cluster"),
    *key(sa.Integer, "version"),
    *required(Digest, "model"),
    *required(JsonColumn, "fit"),
)
"""What was learned from the runs up to a version; `model` is the digest of the cost model it began from."""
