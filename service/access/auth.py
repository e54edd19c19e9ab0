"""Who calls: a name, a tenant and scopes, however the caller proved it."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from service.errors import ForbiddenError
from tools.errors import InputError

Scope = Literal["read", "submit", "approve", "admin", "operator"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
MEANINGS: dict[Scope, str] = {
    "read": "see sessions, reports, traces and knowledge of its tenant; predict",
    "submit": "submit, fork, cancel, retry and delete sessions; upload traces; search plans; add cases",
    "approve": "decide on proposals: approve, reject, edit, submit a plan of one's own; mark cases",
    "admin": "all of it, for its tenant; also read the audit log",
    "operator": "all of it; also name folders of the server as traces, and read the metrics of all tenants",
}
DEFAULT_TENANT = ""
LOCAL_ID = "local"
TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Caller:
    """Made by `Authenticator`, and by a night for the owner of its schedule."""

    name: str
    tenant: str
    scopes: frozenset[str]
    id: str
    """Tells callers apart where requests are counted."""

    def may(self, scope: Scope) -> bool:
        """A tenant's admin may do everything in it; what belongs to no tenant is the operator's."""
        if "operator" in self.scopes or scope in self.scopes:
            return True
        return scope != "operator" and "admin" in self.scopes

    @property
    def is_local(self) -> bool:
        """Whoever reaches a server without keys: the user of this machine."""
        return self.id == LOCAL_ID

    def check(self, scope: Scope) -> None:
        if not self.may(scope):
            scopes = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"this needs the scope {scope}; {self.name} has {scopes}")

    @property
    def knowledge_tenant(self) -> str | None:
        """The knowledge base calls the default tenant None."""
        return self.tenant or None


LOCAL = Caller("local", DEFAULT_TENANT, frozenset(SCOPES), LOCAL_ID)
"""Whoever reaches a server without keys; that server listens on loopback only."""


def is_tenant(name: str) -> bool:
    return TENANT_NAME.fullmatch(name) is not None


def check_tenant(name: str, field: str) -> str:
    """Empty is the default tenant."""
    if name and not is_tenant(name):
        allowed = "must be up to 100 of a-z, 0-9, '.', '_' and '-', and start with a-z or 0-9"
        raise InputError(field, name, allowed)
    return name
