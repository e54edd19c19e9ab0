"""`asap nightly`: one night's run over the workloads of a file, for cron, scrontab or a CronJob."""

import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from service.cli.io import write_json_line
from service.cli.parser import add_action
from tools.errors import AsapError

if TYPE_CHECKING:
    from service.db.schedules import Delivery
    from service.nightly.config import Config
    from service.settings import Settings
    from tools.nightly.result import NightReport, NightResult


HELP = """\
Read the newest profiles of every workload, compare them with the nights before, report what got slower, why,
what to do and what it is worth, search for a faster plan if that pays, and send one report to the team.

  asap nightly run --config nightly.yaml     all of it; examples/nightly.yaml shows the file
  asap nightly check --config nightly.yaml   only check that everything in it can be found and read

The history of a workload is stored in the data folder (ASAP_DATA_DIR), or in ASAP_DATABASE_URL. A profile is
read once, however often this runs. A workload that cannot be read shows the reason; the others still run.

Exit status of 'run': 0 quiet; 4 a workload got slower (new in this run); 5 none did, but one is still slower;
1 one could not be read or a recipient could not be reached; 2 the file is wrong. In crontab, at 5:30:
  30 5 * * *  asap nightly run --config /etc/asap/nightly.yaml
'asap schedule' does the same inside 'asap serve', without cron."""
REGRESSION_FOUND, STILL_SLOWER = 4, 5
FAILED = 1
TITLE = "Nightly report"
LOCK = "nightly.lock"


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    running = add_action(actions, "run", "review the newest profiles and report")
    running.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of the pages; overrides the one in the file"
    )
    running.add_argument("--no-deliver", action="store_true", help="write the report, but do not send it")
    checking = add_action(actions, "check", "check that everything can be found and read")
    for action in (running, checking):
        action.add_argument(
            "--config",
            metavar="FILE",
            type=Path,
            required=True,
            help="workloads and options, see examples/nightly.yaml",
        )


def run(args: Namespace) -> int:
    from service.nightly.config import check_modes, load_config
    from service.settings import load_settings

    config, settings = load_config(args.config), load_settings()
    check_modes(config, may_tune=settings.launch_templates is not None, may_wait=False)
    return {"run": _run, "check": _check}[args.action](args, config, settings)


def _run(args: Namespace, config: "Config", settings: "Settings") -> int:
    from service.nightly.report import ReportSender, find_page, write_report
    from tools.nightly.result import is_stale

    with _exclusive_lock(settings):
        report = _report(args, config, settings)
        folder = args.out or _folder(args.config, config, settings, report.at)
        page = find_page(folder) if is_stale(report) else None
        page = page or write_report(report, folder)  # nothing new must not replace that night's report
        sender = None if args.no_deliver else ReportSender(settings, report.run_id or "")
        deliveries = sender.send(report, config.recipients) if sender else []
    if args.json:
        sent = [delivery.model_dump(mode="json") for delivery in deliveries]
        write_json_line({**report.model_dump(mode="json"), "page": str(page), "deliveries": sent})
    else:
        _print(report, page, deliveries)
    return exit_status(report.outcome, [delivery.ok for delivery in deliveries])


def _report(args: Namespace, config: "Config", settings: "Settings") -> "NightReport":
    from service.cli.keys import opened_database
    from service.nightly.reoptimize import LocalReoptimizer
    from service.nightly.review import NightContext, run_night
    from service.runtime import open_context
    from service.uploads import Uploads

    run_id = uuid.uuid4().hex
    agents = open_context(settings, saves_cases=False) if config.reoptimize else None
    reoptimizer = LocalReoptimizer(agents, run_id, config.budget) if agents else None
    with opened_database(settings) as database:
        base = args.config.absolute().parent
        context = NightContext(database, "", base, Uploads(settings), reoptimizer, run_id)
        return run_night(context, config, TITLE, on_workload=None if args.json else _show_progress)


def _show_progress(result: "NightResult") -> None:
    from service.render.nightly import STATUS

    sys.stderr.write(f"asap: {result.name}: {STATUS[result.status]}\n")


def _folder(path: Path, config: "Config", settings: "Settings", at: float) -> Path:
    """One folder per night, under its date, unless the file names a folder."""
    if config.report is not None:
        return path.absolute().parent / config.report
    return settings.data_dir / "reports" / datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _print(report: "NightReport", page: Path, deliveries: Sequence["Delivery"]) -> None:
    from service.nightly.report import markdown_overview

    sys.stdout.write(markdown_overview(report))
    sys.stdout.write(f"\n{page}\n")
    for delivery in deliveries:
        state = "delivered" if delivery.ok else "not delivered"
        sys.stderr.write(f"asap: {state}: {delivery.kind} {delivery.to} ({delivery.answer})\n")


def exit_status(outcome: str | None, delivered: Sequence[bool]) -> int:
    """What a night found; 0 while it is not over."""
    if outcome == "regression":
        return REGRESSION_FOUND
    if outcome == "broken" or not all(delivered):
        return FAILED
    return STILL_SLOWER if outcome == "slower" else 0


def _check(args: Namespace, config: "Config", settings: "Settings") -> int:
    """Reads everything, stores nothing."""
    from service.nightly.review import check_workload

    checks = [check_workload(workload, args.config.absolute().parent) for workload in config.workloads]
    for check in checks:
        if args.json:
            write_json_line(asdict(check))
        else:
            sys.stdout.write(f"{check.name}: {check.reason or f'newest is {check.newest}'}\n")
    return FAILED if any(check.reason for check in checks) else 0


@contextmanager
def _exclusive_lock(settings: "Settings") -> Iterator[IO[str]]:
    """Two runs at once would send every report twice."""
    import fcntl

    from service.settings import make_data_folder

    with (make_data_folder(settings.data_dir) / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AsapError(
                f"another nightly run is in progress in {settings.data_dir}; wait for it"
            ) from None
        yield file
