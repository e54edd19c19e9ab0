"""What the commands that speak to an `asap serve` share: the connection, and how a session's end is told."""

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from tools.errors import AsapError, InfeasibleError, InputError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from service.client import Client
    from service.client_endpoints import ReportForm
    from service.client_models import Session

FORMS: "dict[str, ReportForm]" = {"markdown": "text/markdown", "html": "text/html"}
COMPLETED, WAITING = "completed", "waiting_approval"


def add_server(actions: "_SubParsersAction[ArgumentParser]") -> None:
    for action in actions.choices.values():
        action.add_argument("--server", metavar="URL", help="its address (ASAP_SERVER)")


def connect(server: str | None) -> "Client":
    """To the address that is given, else to that of the settings, with the key of the settings."""
    from service.client import Client
    from service.settings import load_settings

    settings = load_settings()
    key = settings.api_key.get_secret_value() if settings.api_key else None
    try:
        return Client(server or settings.server, key)
    except InputError as error:
        raise InputError("--server", error.given, error.allowed) from None


def has_report(session: "Session") -> bool:
    """Whether it ended with one. It may wait for a person, which is said; any other end is an error."""
    if session.state == WAITING:
        sys.stderr.write(f"asap: session {session.id} waits: 'asap sessions decide {session.id} approve'\n")
    if session.state in (COMPLETED, WAITING):
        return session.state == COMPLETED
    error = session.error or {}
    says = error.get("message") or f"session {session.id} was {session.state}"
    raise InfeasibleError(says) if error.get("kind") == "infeasible" else AsapError(says)
