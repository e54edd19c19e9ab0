"""`asap nightly`: one night's run over the workloads of a file, for cron, scrontab or a CronJob."""

import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from service.cli.io import write_json_line
from service.cli.parser import add_action
from tools.errors import AsapError

if TYPE_CHECKING:
    from service.nightly.config import Config
    from service.settings import Settings


HELP = """\
Look at the newest profiles of every workload, compare them with the nights before, say what got slower, why,
what to do and what it is worth, look for a faster plan where that pays, and tell the team in one report.

  asap nightly run --config nightly.yaml     all of it; examples/nightly.yaml shows the file
  asap nightly check --config nightly.yaml   only whether everything in it can be found and read

The history of a workload is kept in the data folder (ASAP_DATA_DIR), or in ASAP_DATABASE_URL. A profile is
taken in once, however often this runs. A workload that cannot be read shows its reason; the others still run.

Exit status of 'run': 0 nothing got slower; 4 a workload got slower (new in this run); 1 none did, but one
could not be read or somebody not be told; 2 the file is wrong. In crontab, every night at half past five:
  30 5 * * *  asap nightly run --config /etc/asap/nightly.yaml
'asap schedule' does the same inside 'asap serve', without cron."""
REGRESSION_FOUND = 4
FAILED = 1
TITLE = "Nightly report"
LOCK = "nightly.lock"


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    running = add_action(actions, "run", "look at the newest profiles and report")
    running.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of the pages, in place of the file's"
    )
    running.add_argument("--no-deliver", action="store_true", help="write the report, and tell nobody")
    checking = add_action(actions, "check", "say whether everything can be found and read")
    for action in (running, checking):
        action.add_argument(
            "--config", metavar="FILE", type=Path, required=True, help="as examples/nightly.yaml shows it"
        )


def run(args: Namespace) -> int:
    from service.nightly.config import check_modes, load_config
    from service.settings import load_settings

    config, settings = load_config(args.config), load_settings()
    check_modes(config, may_tune=settings.launch_templates is not None, may_wait=False)
    return {"run": _run, "check": _check}[args.action](args, config, settings)


def _run(args: Namespace, config: "Config", settings: "Settings") -> int:
    from service.nightly.deliver import Post
    from service.nightly.report import write_report

    with _alone(settings):
        report = _report(args, config, settings)
        folder = args.out or _folder(args.config, config, settings, report["at"])
        page = write_report(report, folder)
        wanted = config.recipients if not args.no_deliver else None
        told = Post(settings, report["run_id"]).send(report, wanted) if wanted else []
    if args.json:
        write_json_line({**report, "page": str(page), "deliveries": told})
    else:
        _print(report, page, told)
    return night_status(report["outcome"], told)


def _report(args: Namespace, config: "Config", settings: "Settings") -> dict[str, Any]:
    from service.cli.keys import opened_database
    from service.nightly.reoptimize import InProcess
    from service.nightly.review import Desk, run_night
    from service.runtime import open_context
    from service.traces import Uploads

    run_id = uuid.uuid4().hex
    context = open_context(settings, saves_cases=False) if config.reoptimize else None
    again = InProcess(context, run_id, config.budget) if context else None
    with opened_database(settings) as database:
        base = args.config.absolute().parent
        desk = Desk(database, "", base, Uploads(settings), again, run_id)
        return run_night(desk, config, TITLE, on_workload=None if args.json else _tell)


def _tell(said: dict[str, Any]) -> None:
    sys.stderr.write(f"asap: {said['name']}: {said['status']}\n")


def _folder(path: Path, config: "Config", settings: "Settings", at: float) -> Path:
    """A report of every day is kept, unless the file names a folder."""
    if config.report is not None:
        return path.absolute().parent / config.report
    return settings.data_dir / "reports" / datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _print(report: dict[str, Any], page: Path, told: list[dict[str, Any]]) -> None:
    from service.nightly.report import markdown_overview

    sys.stdout.write(markdown_overview(report))
    sys.stdout.write(f"\n{page}\n")
    for one in told:
        state = "told" if one["ok"] else "not told"
        sys.stderr.write(f"asap: {state}: {one['kind']} {one['to']} ({one['answer']})\n")


def night_status(outcome: str | None, told: Sequence[Mapping[str, Any]]) -> int:
    """The exit status that tells what a night found; 0 while it is not over."""
    if outcome == "regression":
        return REGRESSION_FOUND
    return FAILED if outcome == "broken" or not all(one["ok"] for one in told) else 0


def _check(args: Namespace, config: "Config", settings: "Settings") -> int:
    """Looks at everything, keeps nothing."""
    from service.nightly.ingest import check_workload

    found = [check_workload(workload, args.config.absolute().parent) for workload in config.workloads]
    for one in found:
        if args.json:
            write_json_line(one)
        else:
            sys.stdout.write(f"{one['name']}: {one['reason'] or 'newest is ' + one['newest']}\n")
    return FAILED if any(one["reason"] for one in found) else 0


@contextmanager
def _alone(settings: "Settings") -> Iterator[IO[str]]:
    """Two runs at once would tell everybody twice."""
    import fcntl

    from service.settings import make_data_folder

    with (make_data_folder(settings.data_dir) / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AsapError(f"another nightly run is under way in {settings.data_dir}; wait for it") from None
        yield file
