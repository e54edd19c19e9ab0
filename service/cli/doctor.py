"""`asap doctor`: what an installation is configured with, whether each part works, and what to do if not.

It changes nothing: what is not there yet is reported, not made.
"""

import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from service import __version__
from service.cli.io import make_table, safe_text, write_json_line
from tools.errors import AsapError, InputError

if TYPE_CHECKING:
    from service.settings import Settings
    from tools.launch.template import Template

HELP = """\
Check this installation: settings, write access and disk, database, knowledge base, language model
(one question is asked, as a session asks it), launchers. Nothing is changed. One line per part: what was
found and, if something is missing, what to do.

Settings come from the environment (ASAP_*) or .env in this folder; 'asap serve --help' lists them all.

Exit status 1: a part that is configured does not work. A part that is optional and not configured is
shown as a note and does not count.

Examples:
  asap doctor
  asap doctor --json | jq 'select(.state == "failed")'"""

State = Literal["ok", "note", "failed"]
STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "failed": "bold red"}
LOW_DISK_BYTES = 2 * 2**30
"""Room for a night of traces and the write-ahead log of the database."""


@dataclass(frozen=True)
class Finding:
    """One line of the answer; `todo` is empty if there is nothing to do."""

    what: str
    state: State
    found: str
    todo: str = ""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per part")


def run(args: Namespace) -> int:
    findings = list(examine())
    if args.json:
        for finding in findings:
            write_json_line(asdict(finding))
    else:
        print_findings(findings)
    return int(any(finding.state == "failed" for finding in findings))


def print_findings(findings: list[Finding]) -> None:
    from rich.console import Console

    table = make_table("", "what", "found", "to do", wraps=("found", "to do"))
    for finding in findings:
        cells = (safe_text(text) for text in (finding.what, finding.found, finding.todo))
        table.add_row(safe_text(finding.state, STYLES[finding.state]), *cells)
    Console().print(table)


def examine() -> Iterator[Finding]:
    """Every part in the order in which a server needs it; a fault of one does not hide the next."""
    from service.settings import load_settings

    yield Finding("asap", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    try:
        settings = load_settings()
    except InputError as error:
        yield Finding("settings", "failed", str(error), "correct it in .env or in the environment")
        return
    stated = sorted(settings.model_fields_set)
    found = f"{len(stated)} set: {', '.join(stated)}" if stated else "defaults"
    yield Finding("settings", "ok", found if len(stated) < 6 else f"{len(stated)} set")
    for what, check in CHECKS.items():
        try:
            yield check(settings)
        except (AsapError, OSError) as error:
            yield Finding(what, "failed", str(error), REMEDIES[what])


def _data_folder(settings: "Settings") -> Finding:
    """Write access and room for all that is written below it."""
    folders = {
        settings.data_dir,
        settings.traces_dir or settings.data_dir,
        settings.jobs_dir or settings.data_dir,
    }
    for folder in sorted(folders):
        there = _nearest(folder)
        if not os.access(there, os.W_OK | os.X_OK):
            raise AsapError(f"{folder}: no write access to {there}")
    there = _nearest(settings.data_dir)
    free = shutil.disk_usage(there).free
    found = f"{settings.data_dir.absolute()}, {free / 2**30:.1f} GiB free"
    if there != settings.data_dir.absolute():
        found += "; not there yet, made when something is kept"
    if free < LOW_DISK_BYTES:
        return Finding(
            "data folder", "failed", found, "free some space, or set ASAP_DATA_DIR to a larger disk"
        )
    return Finding("data folder", "ok", found)


def _nearest(folder: Path) -> Path:
    """The folder, or the parent in which it would be made."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _database(settings: "Settings") -> Finding:
    from sqlalchemy.exc import SQLAlchemyError

    from service.db.engine import open_database

    if settings.database_url is None and not (settings.data_dir / "asap.db").exists():
        return Finding("database", "ok", "SQLite, not there yet", "made by the first 'asap serve'")
    name = "SQLite" if settings.database_url is None else "PostgreSQL"
    database = open_database(settings.database)
    try:
        current = database.is_current()
    except SQLAlchemyError as error:
        # The first line alone: the rest may repeat the address with its password.
        reason = str(error.__cause__ or error).splitlines()[0]
        raise AsapError(f"{name}: {reason}") from None
    finally:
        database.close()
    if not current:
        return Finding(
            "database", "note", f"{name}, schema of another version", "'asap serve' upgrades an older one"
        )
    return Finding("database", "ok", f"{name}, schema up to date")


def _knowledge(settings: "Settings") -> Finding:
    from service.runtime import embedder_of, has_knowledge, open_knowledge
    from tools.kb import open_seed

    embedder = embedder_of(settings)
    base = open_knowledge(settings) if has_knowledge(settings) else open_seed(embedder=embedder)
    try:
        base.search("exposed communication", limit=1)
        found, limitation = f"{len(base.entries())} entries", base.limitation
    finally:
        base.close()
    if limitation is None:
        return Finding("knowledge base", "ok", f"{found}, searched by words and meaning")
    if embedder is None:
        todo = "for meaning too: pip install 'asap-sharding[embeddings]', or ASAP_EMBEDDING=endpoint"
        return Finding("knowledge base", "note", f"{found}, searched by words", todo)
    return Finding("knowledge base", "failed", f"{found}; {limitation}", "asap kb reindex")


def _language_model(settings: "Settings") -> Finding:
    """Asks one question as a session does: only that shows that address, key, model and ASAP go together."""
    from service.runtime import open_context

    context = open_context(settings, saves_cases=False)  # raises if only half of an endpoint is configured
    if not settings.llm_base_url:
        todo = "optional: ASAP_LLM_BASE_URL, ASAP_LLM_MODEL, ASAP_LLM_API_KEY (docs/agents.md)"
        return Finding("language model", "ok", "none: the expert rules answer", todo)
    from graph.session import check_model

    start = time.perf_counter()
    incidents = check_model(context)
    if not incidents:
        took_s = time.perf_counter() - start
        return Finding("language model", "ok", f"{settings.llm_model} answered a question in {took_s:.1f} s")
    is_ours = any(incident.error for incident in incidents)
    return Finding(
        "language model",
        "failed",
        f"{incidents[0].kind}: {incidents[0].says}",
        "a bug of ASAP: please report it with the log above" if is_ours else REMEDIES["language model"],
    )


def _launchers(settings: "Settings") -> Finding:
    from service.runtime import open_trials

    trials = open_trials(settings)
    if trials is None:
        todo = "optional, for mode tune: ASAP_LAUNCH_TEMPLATES (docs/trials.md)"
        return Finding("launchers", "ok", "none: plans are predicted, not measured", todo)
    for template in trials.templates.values():
        _check_engine(settings, template)
    names = ", ".join(f"{name} ({template.launcher})" for name, template in trials.templates.items())
    return Finding("launchers", "ok", names)


def _check_engine(settings: "Settings", template: "Template") -> None:
    """Whether the engine is there; whether the training program runs is for the first trial to show."""
    from service.settings import process_environment

    if template.launcher == "kubernetes":
        try:
            from tools.launch.kubernetes import KubernetesApi, open_cluster
        except ImportError:
            raise AsapError(f"{template.name}: the package kubernetes is not installed") from None
        namespace = template.kubernetes.namespace if template.kubernetes else "default"
        KubernetesApi(open_cluster(settings.kubeconfig, settings.kube_context)).find(namespace, "asap-doctor")
        return
    program = "sbatch" if template.launcher == "slurm" else template.command[0]
    if shutil.which(program, path=process_environment()["PATH"]) is None:
        raise AsapError(f"{template.name}: {program} is not on PATH")


CHECKS: dict[str, Callable[["Settings"], Finding]] = {
    "data folder": _data_folder,
    "database": _database,
    "knowledge base": _knowledge,
    "language model": _language_model,
    "launchers": _launchers,
}
REMEDIES = {
    "data folder": "give this user write access, or set ASAP_DATA_DIR",
    "database": "check ASAP_DATABASE_URL and that the server runs",
    "knowledge base": "check ASAP_CHROMA_URL and ASAP_EMBEDDING; 'asap kb reindex' makes the index anew",
    "language model": "check ASAP_LLM_BASE_URL (most end in /v1), ASAP_LLM_MODEL and ASAP_LLM_API_KEY",
    "launchers": "check ASAP_LAUNCH_TEMPLATES, or install the engine where the workers run",
}
