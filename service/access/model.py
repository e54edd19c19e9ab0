"""API keys, the audit log, and what tenants computed."""

import sqlalchemy as sa

from service.db.tables import Digest, Id, JsonColumn, key, metadata, optional, required

audit = sa.Table(
    "audit",
    metadata,
    *key(Id, "id"),
    *required(sa.Text, "tenant"),
    *required(sa.Double, "at"),
    *required(sa.Text, "who", "action", "target"),
    *optional(sa.Text, "request_id"),
    *required(JsonColumn, "details"),
    sa.Index("audit_by_tenant", "tenant", "id"),
    sa.Index("audit_by_target", "tenant", "target", "id"),
)

keys = sa.Table(
    "keys",
    metadata,
    *key(Id, "id"),
    *required(sa.Text, "tenant", "name"),
    *required(Digest, "digest"),
    *required(JsonColumn, "scopes"),
    *required(sa.Double, "created_at"),
    *optional(sa.Double, "expires_at", "revoked_at", "used_at"),
)

computing_use = sa.Table(
    "computing_use",
    metadata,
    *key(Id, "process"),
    *key(sa.Text, "tenant"),
    *required(sa.Double, "cpu_s", "updated_at"),
)
"""CPU seconds that each API process has spent for a tenant since it started."""
