"""Runs the agents for `asap optimize`: in memory, or kept in the data folder under a name.

Not here: what the agents do (`graph`), and how the report is shown.
"""

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph.request import Request
from service.cli.optimize_progress import Watch
from service.data_folder import make_data_folder
from service.settings import Settings, load_settings
from tools.errors import InputError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
LOCKS = "sessions"
FIRST_INPUT = "__start__"
"""Where LangGraph keeps the input until the first node has run."""


def check_name(name: str) -> None:
    """It becomes part of a case's id and of a file's name."""
    if not NAME.fullmatch(name):
        raise InputError(
            "--session", name, "allowed: up to 80 of a-z, 0-9, '_' and '-', first a letter or digit"
        )


def name_of_trials() -> str:
    """For a session that nobody named: its trials' jobs must be found again under it."""
    return f"tune-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def run_once(request: Request, watch: Watch) -> dict[str, Any]:
    """Leaves nothing behind; what the installation has learnt is read."""
    return _run("optimize", request, watch, load_settings(), None)


def run_kept(name: str, request: Request, watch: Watch) -> dict[str, Any]:
    """A checkpoint after each node; the same name goes on where it was, or repeats its report."""
    from service.checkpoints import open_checkpoints

    settings = load_settings()
    with _alone(make_data_folder(settings.data_dir) / LOCKS, name), open_checkpoints(settings) as saver:
        known = _known_request(saver, name)
        if known is not None and known != request.scenario:
            raise InputError("--session", name, "is about another scenario; choose another name")
        return _run(name, request, watch, settings, saver)


def _run(
    id: str,
    request: Request,
    watch: Watch,
    settings: Settings,
    saver: "BaseCheckpointSaver[Any] | None",
) -> dict[str, Any]:
    from graph.session import Session
    from service.context import open_context

    context = open_context(settings, learns=saver is not None)
    context = replace(context, progress=watch.progress, limits=context.limits.within(request.budget))
    report = Session(id, context, saver).run(request, watch.event).report
    if report is None:
        raise InputError("--session", id, "waits for a decision; asap serve takes it")
    return report


def _known_request(saver: "BaseCheckpointSaver[Any]", name: str) -> dict[str, Any] | None:
    kept = saver.get_tuple({"configurable": {"thread_id": name}})
    if kept is None:
        return None
    values = kept.checkpoint["channel_values"]
    request: dict[str, Any] | None = values.get(FIRST_INPUT, values).get("request")
    return request


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """One process at a time for a session; the lock goes with the process, however it ends."""
    import fcntl

    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("--session", name, "is running in another process; wait for it") from None
        yield
