"""Who calls: a name, a tenant, and what that allows."""

from dataclasses import dataclass
from typing import Literal, get_args

from service.auth.errors import ForbiddenError

Scope = Literal["read", "submit", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
MEANINGS: dict[Scope, str] = {
    "read": "see sessions, reports, traces and knowledge of the own tenant; predict",
    "submit": "submit, cancel, retry and delete sessions; upload traces; search plans; add cases",
    "approve": "decide on proposals: approve, reject, edit, submit a plan of one's own; mark cases",
    "admin": "all of it; also name folders of the server as traces, read the audit log and the metrics",
}
DEFAULT_TENANT = ""


@dataclass(frozen=True)
class Caller:
    """Made by `Authenticator` only."""

    name: str
    tenant: str
    scopes: frozenset[str]
    id: str
    """Tells callers apart where requests are counted."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def check(self, scope: Scope) -> None:
        if not self.may(scope):
            held = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"this needs the scope {scope}; {self.name} has {held}")

    @property
    def knowledge_tenant(self) -> str | None:
        """The knowledge base calls the default tenant None: what it adds, everybody sees."""
        return self.tenant or None


LOCAL = Caller("local", DEFAULT_TENANT, frozenset(SCOPES), "local")
"""Whoever reaches a server without keys; that server listens on loopback only."""
