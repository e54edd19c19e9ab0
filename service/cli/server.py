"""The server that commands talk to: its client, what becomes of a session, how reports are asked for."""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from service.cli.io import write_note
from tools.errors import AsapError, InfeasibleError, InputError

if TYPE_CHECKING:
    from asap_client.client import Client
    from asap_client.generated.calls import ReportForm
    from asap_client.generated.models import Session

FORMS: "dict[str, ReportForm]" = {"markdown": "text/markdown", "html": "text/html"}
COMPLETED, WAITING = "completed", "waiting_approval"


def add_report_format(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=tuple(FORMS), default="markdown", help="how to print it (markdown)"
    )


def connect(server: str | None) -> "Client":
    """To this address, or that of the settings, with the key of the settings."""
    from asap_client.client import Client
    from asap_client.errors import InputError as ClientInputError
    from service.settings import load_settings

    settings = load_settings()
    key = settings.api_key.get_secret_value() if settings.api_key else None
    try:
        return Client(server or settings.server, key)
    except ClientInputError as error:
        raise InputError("--server", error.given, error.allowed) from None


def check_ended(session: "Session") -> bool:
    """Whether it completed. Prints the next step if it waits for a decision; raises if it ended otherwise."""
    if session.state == WAITING:
        write_note(f"session {session.id} waits for a decision: 'asap sessions decide {session.id} approve'")
    if session.state in (COMPLETED, WAITING):
        return session.state == COMPLETED
    error = session.error
    message = (error and error["message"]) or f"session {session.id} was {session.state}"
    raise InfeasibleError(message) if error and error["kind"] == "infeasible" else AsapError(message)
