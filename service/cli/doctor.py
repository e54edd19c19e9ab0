"""`asap doctor`: what an installation is configured with, whether each part works, and what to do if not.

It changes nothing: what is not there yet is reported, not made.
"""

import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from service import __version__
from service.cli.io import make_table, safe_text, write_json
from tools.errors import AsapError, InputError

if TYPE_CHECKING:
    from service.settings import Settings

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

PartState = Literal["ok", "note", "failed"]
Checked = tuple[PartState, str, str]
"""The state of a part, what was found, and what to do."""
STYLES: dict[PartState, str] = {"ok": "green", "note": "yellow", "failed": "bold red"}
LOW_DISK_BYTES = 2 * 2**30
"""Room for a night of traces and the write-ahead log of the database."""
CHECK_MODEL = "check ASAP_LLM_BASE_URL (most end in /v1), ASAP_LLM_MODEL and ASAP_LLM_API_KEY"


class Part(NamedTuple):
    """One line of the answer; `todo` is empty if there is nothing to do."""

    what: str
    state: PartState
    found: str
    todo: str = ""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per part")


def run(args: Namespace) -> int:
    parts = list(examine())
    if args.json:
        write_json(*(part._asdict() for part in parts))
    else:
        from rich.console import Console

        rows = (
            (safe_text(part.state, STYLES[part.state]), part.what, part.found, part.todo) for part in parts
        )
        Console().print(make_table("", "what", "found", "to do", rows=rows, wraps=("found", "to do")))
    return int(any(part.state == "failed" for part in parts))


def examine() -> Iterator[Part]:
    """Every part in the order in which a server needs it; a fault of one does not hide the next."""
    from service.settings import load_settings

    yield Part("asap", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    try:
        settings = load_settings()
    except InputError as error:
        yield Part("settings", "failed", str(error), "correct it in .env or in the environment")
        return
    stated = sorted(settings.model_fields_set)
    found = f"{len(stated)} set: {', '.join(stated)}" if stated else "defaults"
    yield Part("settings", "ok", found if len(stated) < 6 else f"{len(stated)} set")
    for what, check, remedy in (
        ("data folder", check_data_folder, "give this user write access, or set ASAP_DATA_DIR"),
        ("database", check_database, "check ASAP_DATABASE_URL and that the server runs"),
        (
            "knowledge base",
            check_knowledge,
            "check ASAP_CHROMA_URL and ASAP_EMBEDDING; 'asap kb reindex' makes the index anew",
        ),
        ("language model", check_language_model, CHECK_MODEL),
        (
            "launchers",
            check_launchers,
            "check ASAP_LAUNCH_TEMPLATES, or install the engine where the workers run",
        ),
    ):
        try:
            yield Part(what, *check(settings))
        except (AsapError, OSError) as error:
            yield Part(what, "failed", str(error), remedy)


def check_data_folder(settings: "Settings") -> Checked:
    """Write access and room for all that is written below it."""

    def nearest(folder: Path) -> Path:
        """The folder, or the parent in which it would be made."""
        return next(path for path in (folder, *folder.parents) if path.is_dir())

    folder = settings.data_dir.absolute()
    for written in sorted({settings.data_dir, *filter(None, (settings.traces_dir, settings.jobs_dir))}):
        there = nearest(written.absolute())
        if not os.access(there, os.W_OK | os.X_OK):
            raise AsapError(f"{written}: no write access to {there}")
    free = shutil.disk_usage(nearest(folder)).free
    found = f"{folder}, {free / 2**30:.1f} GiB free"
    if not folder.is_dir():
        found += "; not there yet, made when something is kept"
    if free < LOW_DISK_BYTES:
        return "failed", found, "free some space, or set ASAP_DATA_DIR to a larger disk"
    return "ok", found, ""


def check_database(settings: "Settings") -> Checked:
    from sqlalchemy.exc import SQLAlchemyError

    from service.db.engine import open_database

    if settings.database_url is None and not (settings.data_dir / "asap.db").exists():
        return "ok", "SQLite, not there yet", "made by the first 'asap serve'"
    name = "SQLite" if settings.database_url is None else "PostgreSQL"
    try:
        with closing(open_database(settings.database)) as database:
            is_current = database.is_current()
    except SQLAlchemyError as error:
        # The first line alone: the rest may repeat the address with its password.
        reason = str(error.__cause__ or error).splitlines()[0]
        raise AsapError(f"{name}: {reason}") from None
    if not is_current:
        return "note", f"{name}, schema of another version", "'asap serve' upgrades an older one"
    return "ok", f"{name}, schema up to date", ""


def check_knowledge(settings: "Settings") -> Checked:
    from service.runtime import embedder_of, has_knowledge, open_knowledge
    from tools.kb import open_seed

    embedder = embedder_of(settings)
    opened = open_knowledge(settings) if has_knowledge(settings) else open_seed(embedder=embedder)
    with closing(opened) as base:
        base.search("exposed communication", limit=1)
        found, limitation = f"{len(base.entries())} entries", base.limitation
    if limitation is None:
        return "ok", f"{found}, searched by words and meaning", ""
    if embedder is None:
        todo = "for meaning too: pip install 'asap-sharding[embeddings]', or ASAP_EMBEDDING=endpoint"
        return "note", f"{found}, searched by words", todo
    return "failed", f"{found}; {limitation}", "asap kb reindex"


def check_language_model(settings: "Settings") -> Checked:
    """Asks one question as a session does: only that shows that address, key, model and ASAP go together."""
    from service.runtime import open_context

    context = open_context(settings, saves_cases=False)  # raises if only half of an endpoint is configured
    if not settings.llm_base_url:
        todo = "optional: ASAP_LLM_BASE_URL, ASAP_LLM_MODEL, ASAP_LLM_API_KEY (docs/agents.md)"
        return "ok", "none: the expert rules answer", todo
    from graph.session import check_model

    start = time.perf_counter()
    incidents = check_model(context)
    if not incidents:
        took_s = time.perf_counter() - start
        return "ok", f"{settings.llm_model} answered a question in {took_s:.1f} s", ""
    is_ours = any(incident.error for incident in incidents)
    todo = "a bug of ASAP: please report it with the log above" if is_ours else CHECK_MODEL
    return "failed", f"{incidents[0].kind}: {incidents[0].summary}", todo


def check_launchers(settings: "Settings") -> Checked:
    """Whether the engines are there; whether a training program runs is for the first trial to show."""
    from service.runtime import open_trials
    from service.settings import process_environment

    trials = open_trials(settings)
    if trials is None:
        todo = "optional, for mode tune: ASAP_LAUNCH_TEMPLATES (docs/trials.md)"
        return "ok", "none: plans are predicted, not measured", todo
    for template in trials.templates.values():
        program = "sbatch" if template.launcher == "slurm" else template.command[0]
        if template.launcher == "kubernetes":
            try:
                from tools.launch.kubernetes import KubernetesApi, open_cluster
            except ImportError:
                raise AsapError(f"{template.name}: the package kubernetes is not installed") from None
            namespace = template.kubernetes.namespace if template.kubernetes else "default"
            cluster = open_cluster(settings.kubeconfig, settings.kube_context)
            KubernetesApi(cluster).find(namespace, "asap-doctor")
        elif shutil.which(program, path=process_environment()["PATH"]) is None:
            raise AsapError(f"{template.name}: {program} is not on PATH")
    names = (f"{name} ({template.launcher})" for name, template in trials.templates.items())
    return "ok", ", ".join(names), ""
