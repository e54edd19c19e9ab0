"""`asap schedule`: nightly runs scheduled by a server."""

import sys
import time
from argparse import ArgumentParser, Namespace
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.io import make_table, print_fields, write_document, write_json
from service.cli.nightly import exit_status
from service.cli.parser import add_action, add_actions, add_options, add_server
from service.cli.server import FORMS, add_report_format, connect
from tools.errors import AsapError

if TYPE_CHECKING:
    from rich.console import Console

    from asap_client.client import Client
    from asap_client.generated.models import Schedule

HELP = """\
Let a server ('asap serve') review workloads every night: what 'asap nightly run' does, by the server's clock,
on any of its workers, each night once.

FILE is what 'asap nightly' takes (examples/nightly.yaml), and may also have `name`, `cron`, `zone` and
  missed: once | skip       a night for which no worker was available: caught up once, or skipped
  overlap: skip | wait      a night whose predecessor still runs
  blackouts:                no run starts then
    - {from: "22:00", to: "06:00", days: [sat, sun]}
    - {start: 2026-12-24T00:00, end: 2026-12-27T00:00, reason: holidays}
  jitter_s: 600             start up to ten minutes later, to spread the load
Scenario files of this machine are read and sent. `traces` and `metrics` are read by the server under the
path they have here (a shared folder), and need a key with the scope operator; `uploads: PATTERN` takes the
newest uploaded traces whose name matches.

Cron's five fields mean what they mean to Debian's cron, in the zone: when clocks go forward, a time that does
not exist runs at the end of the gap; when they go back, a nightly time runs once.

Exit status of 'run --wait', as of 'asap nightly run': 4 a workload got slower (new in this run); 5 none did,
but one is still slower; 1 none did, but one could not be read, a recipient could not be reached, or the run
failed or was skipped; 0 none of these.

Examples:
  asap schedule add examples/nightly.yaml --name pretraining --cron "30 5 * * *" --zone Europe/Berlin
  asap schedule list
  asap schedule run pretraining --wait
  asap schedule runs pretraining
  asap schedule report pretraining --format html > night.html"""
POLL_S = 1.0
MIN_WIDTH = 120


def add_arguments(parser: ArgumentParser) -> None:
    actions = add_actions(parser)
    adding = add_action(actions, "add", "register workloads", add)
    add_options(
        adding,
        ("file", "FILE", "workloads and options, as for 'asap nightly'"),
        ("--name", "NAME", "its name, if the file has none"),
        ("--cron", "CRON", 'when: five fields, for instance "30 5 * * *"'),
        ("--zone", "ZONE", "of those times, for instance Europe/Berlin (UTC)"),
    )
    add_action(actions, "list", "every schedule, and when it runs next", list_schedules)
    for name, about, act in (
        ("show", "one schedule", show),
        ("pause", "run no more nights", show),
        ("resume", "run nights again, from now on", show),
        ("run", "run it now, whatever the clock says", run_now),
        ("runs", "its nights, and how each ended", list_runs),
        ("report", "the report of a night", report),
        ("remove", "remove it; the history of its workloads stays", remove),
    ):
        add_action(actions, name, about, act).add_argument("schedule", metavar="NAME", help="its name or id")
    actions.choices["run"].add_argument("--wait", action="store_true", help="until it has ended")
    reporting = actions.choices["report"]
    reporting.add_argument("--run", metavar="ID", help="of this run (default: the last one with a report)")
    add_report_format(reporting)
    for action in actions.choices.values():
        add_server(action)


def run(args: Namespace) -> int:
    with connect(args.server) as client:
        return args.act(client, args) or 0


def add(client: "Client", args: Namespace) -> None:
    """Sends the file with the options in its place, the scenarios that it names, and absolute paths."""
    from service.schedules.calendar import ScheduleSpec, parse_schedule
    from service.schedules.config import load_scenario, load_yaml, parse

    options = {name: value for name in ("name", "cron", "zone") if (value := getattr(args, name)) is not None}
    content = {name: value for name, value in load_yaml(Path(args.file), "FILE").items() if name != "report"}
    spec = parse(ScheduleSpec, {**content, **options})
    body = spec.model_dump(mode="json", by_alias=True)
    base = Path(args.file).absolute().parent
    folder = Path(escape(str(base)))  # what follows it is a pattern
    for workload, written in zip(spec.workloads, body["workloads"], strict=True):
        written["scenario"] = load_scenario(workload, base)
        written |= {name: str(folder / written[name]) for name in ("traces", "metrics") if written[name]}
    parse_schedule(body, may_tune=True)  # the server decides whether it may tune
    print_schedule(client.add_schedule(body), args)


def list_schedules(client: "Client", args: Namespace) -> None:
    schedules = list(client.all_schedules())
    if args.json:
        write_json(*(schedule.raw for schedule in schedules))
        return
    columns = ("name", "state", "cron", "zone", "next", "workloads", "last night")
    rows = (
        (
            *(schedule.name, schedule.state, schedule.cron, schedule.zone, _time(schedule.next_at)),
            *(str(len(schedule.definition.get("workloads") or [])), _last_night(schedule)),
        )
        for schedule in schedules
    )
    table = make_table(*columns, rows=rows, wraps=columns)
    _console().print(table if schedules else "no schedules; 'asap schedule add FILE' adds one")


def show(client: "Client", args: Namespace) -> None:
    """One schedule, as it is once the action is done."""
    act = {"pause": client.pause_schedule, "resume": client.resume_schedule}.get(args.action, client.schedule)
    print_schedule(act(args.schedule), args)


def run_now(client: "Client", args: Namespace) -> int:
    night = client.run_schedule(args.schedule)
    while args.wait and not (night := client.run(args.schedule, night.id)).is_over:
        time.sleep(POLL_S)
    if args.json:
        write_json(night.raw)
    else:
        reason = f": {night.reason}" if night.reason else ""
        sys.stdout.write(f"{night.id} {night.outcome or night.state}{reason}\n")
    if night.state in ("failed", "skipped"):
        raise AsapError(night.reason or f"run {night.id} {night.state}")
    return exit_status(night.outcome, [delivery["ok"] for delivery in night.deliveries or []])


def list_runs(client: "Client", args: Namespace) -> None:
    runs = client.runs(args.schedule).items
    if args.json:
        write_json(*(night.raw for night in runs))
        return
    columns = ("id", "planned", "by", "state", "outcome", "reason")
    rows = (
        (
            *(night.id, _time(night.planned_at), night.trigger),
            *(night.state, night.outcome or "", night.reason or ""),
        )
        for night in runs
    )
    _console().print(make_table(*columns, rows=rows, wraps=columns) if runs else "no nights yet")


def report(client: "Client", args: Namespace) -> None:
    runs = [] if args.run else client.runs(args.schedule).items
    id = args.run or next((night.id for night in runs if night.outcome is not None), None)
    if id is None:
        raise AsapError(f"no run of {args.schedule} has a report yet; 'asap schedule runs {args.schedule}'")
    if args.json:
        write_json(client.run_report(args.schedule, id))
    else:
        write_document(client.run_report_text(args.schedule, id, FORMS[args.format]))


def remove(client: "Client", args: Namespace) -> None:
    client.remove_schedule(args.schedule)
    if args.json:
        write_json({"schedule": args.schedule, "removed": True})


def print_schedule(schedule: "Schedule", args: Namespace) -> None:
    if args.json:
        write_json(schedule.raw)
        return
    print_fields(
        {
            "name": schedule.name,
            "id": schedule.id,
            "state": schedule.state,
            "reason": schedule.reason,
            "cron": f"{schedule.cron} ({schedule.zone})",
            "next": _time(schedule.next_at),
            "last night": _last_night(schedule),
            "workloads": ", ".join(job["name"] for job in schedule.definition.get("workloads") or []),
        }
    )


def _last_night(schedule: "Schedule") -> str:
    last = schedule.last_run
    if last is None:
        return "none yet"
    reason = f": {last.reason}" if last.reason else ""
    return f"{_time(last.planned_at)} {last.outcome or last.state}{reason}"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def _console() -> "Console":
    """Wide enough for an id beside the rest: what people copy must not be wrapped."""
    from rich.console import Console

    return Console(width=max(Console().width, MIN_WIDTH))
