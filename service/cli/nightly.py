"""`asap nightly`: one night's run over the workloads of a file, for cron, scrontab or a CronJob."""

import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.io import locked, write_json, write_note
from service.cli.parser import add_action, add_actions
from tools.errors import AsapError

if TYPE_CHECKING:
    from service.schedules.config import Config
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
    actions = add_actions(parser)
    running = add_action(actions, "run", "review the newest profiles and report", review)
    pages = "folder of the pages; overrides the one in the file"
    running.add_argument("--out", metavar="DIR", type=Path, help=pages)
    running.add_argument("--no-deliver", action="store_true", help="write the report, but do not send it")
    checking = add_action(actions, "check", "check that everything can be found and read", check)
    file = "workloads and options, see examples/nightly.yaml"
    for action in (running, checking):
        action.add_argument("--config", metavar="FILE", type=Path, required=True, help=file)


def run(args: Namespace) -> int:
    from service.schedules.config import check_modes, load_config
    from service.settings import load_settings

    config, settings = load_config(args.config), load_settings()
    check_modes(config, may_tune=settings.launch_templates is not None, may_wait=False)
    status: int = args.act(args, config, settings)
    return status


def review(args: Namespace, config: "Config", settings: "Settings") -> int:
    from service.schedules.deliver import ReportSender
    from service.schedules.report import find_page, markdown_overview, write_report
    from service.settings import make_data_folder
    from tools.nightly.result import is_stale

    with locked(make_data_folder(settings.data_dir) / LOCK) as is_ours:
        if not is_ours:  # two runs at once would send every report twice
            folder = settings.data_dir
            raise AsapError(f"another nightly run is in progress in {folder}; wait for it")
        report = review_workloads(args, config, settings)
        folder = args.out
        if folder is None and config.report is not None:
            folder = args.config.absolute().parent / config.report
        elif folder is None:  # one folder per night, under its date
            night = datetime.fromtimestamp(report.at, UTC).strftime("%Y-%m-%d")
            folder = settings.data_dir / "reports" / night
        page = find_page(folder) if is_stale(report) else None
        page = page or write_report(report, folder)  # nothing new must not replace that night's report
        sender = None if args.no_deliver else ReportSender(settings, report.run_id or "")
        deliveries = sender.send(report, config.recipients) if sender else []
    if args.json:
        sent = [delivery.model_dump(mode="json") for delivery in deliveries]
        write_json({**report.model_dump(mode="json"), "page": str(page), "deliveries": sent})
    else:
        sys.stdout.write(f"{markdown_overview(report)}\n{page}\n")
        for delivery in deliveries:
            state = "delivered" if delivery.ok else "not delivered"
            write_note(f"{state}: {delivery.kind} {delivery.to} ({delivery.answer})")
    return exit_status(report.outcome, [delivery.ok for delivery in deliveries])


def review_workloads(args: Namespace, config: "Config", settings: "Settings") -> "NightReport":
    from service.cli.keys import opened_database
    from service.render.nightly import STATUS
    from service.runtime import open_context
    from service.schedules.reoptimize import LocalReoptimizer
    from service.schedules.review import NightContext, run_night
    from service.traces.uploads import Uploads

    def show_progress(result: "NightResult") -> None:
        write_note(f"{result.name}: {STATUS[result.status]}")

    run_id = uuid.uuid4().hex
    agents = open_context(settings, saves_cases=False) if config.reoptimize else None
    reoptimizer = LocalReoptimizer(agents, run_id, config.budget) if agents else None
    with opened_database(settings) as database:
        base = args.config.absolute().parent
        context = NightContext(database, "", base, Uploads(settings), reoptimizer, run_id)
        return run_night(context, config, TITLE, on_workload=None if args.json else show_progress)


def check(args: Namespace, config: "Config", settings: "Settings") -> int:
    """Reads everything, stores nothing."""
    from service.schedules.sources import check_workload

    checks = [check_workload(workload, args.config.absolute().parent) for workload in config.workloads]
    if args.json:
        write_json(*map(asdict, checks))
    else:
        for checked in checks:
            sys.stdout.write(f"{checked.name}: {checked.reason or f'newest is {checked.newest}'}\n")
    return FAILED if any(checked.reason for checked in checks) else 0


def exit_status(outcome: str | None, delivered: Sequence[bool]) -> int:
    """What a night found; 0 while it is not over."""
    if outcome == "regression":
        return REGRESSION_FOUND
    if outcome == "broken" or not all(delivered):
        return FAILED
    return STILL_SLOWER if outcome == "slower" else 0
