"""`asap schedule`: nightly runs scheduled by a server."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.io import said

if TYPE_CHECKING:
    from asap_client.schedules import Run, Schedule
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.io import FORMS, add_server, connect, write_document, write_json_line
from service.cli.nightly import night_status
from service.cli.parser import add_action
from tools.errors import AsapError

if TYPE_CHECKING:
    from asap_client.client import Client
    from asap_client.schedules import Run, Schedule


LEAST_WIDTH = 120


def print_schedules(schedules: Sequence["Schedule"]) -> None:
    table = _table("name", "state", "cron", "zone", "next", "workloads", "last night")
    for one in schedules:
        count = str(len(one.definition.get("workloads") or []))
        words = (one.name, one.state, one.cron, one.zone, _time(one.next_at), count, _last(one))
        table.add_row(*map(said, words))
    _console().print(table if schedules else "no schedules; 'asap schedule add FILE' makes one")


def print_schedule(schedule: "Schedule") -> None:
    names = [one["name"] for one in schedule.definition.get("workloads") or []]
    rows = {
        "name": schedule.name,
        "id": schedule.id,
        "state": schedule.state,
        "reason": schedule.reason or "",
        "cron": f"{schedule.cron} ({schedule.zone})",
        "next": _time(schedule.next_at),
        "last night": _last(schedule),
        "workloads": ", ".join(names),
    }
    table = Table(box=None, show_header=False)
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, style="bold"), said(value))
    Console().print(table)


def print_runs(runs: Sequence["Run"]) -> None:
    table = _table("id", "planned", "by", "state", "outcome", "reason")
    for one in runs:
        words = (one.id, _time(one.planned_at), one.trigger, one.state, one.outcome or "", one.reason or "")
        table.add_row(*map(said, words))
    _console().print(table if runs else "no nights yet")


def _last(schedule: "Schedule") -> str:
    last = schedule.last_run
    if last is None:
        return "none yet"
    told = last.outcome or last.state
    return f"{_time(last.planned_at)} {told}" + (f": {last.reason}" if last.reason else "")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def _console() -> Console:
    """Wide enough for an id beside the rest: what is to be copied must not be broken."""
    return Console(width=max(Console().width, LEAST_WIDTH))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


HELP = """\
Let a server ('asap serve') look at workloads every night: what 'asap nightly run' does, by its clock, on
whichever worker is there, each night once.

FILE is what 'asap nightly' takes (examples/nightly.yaml), and may also say `name`, `cron`, `zone` and
  missed: once | skip       a night that no worker was there for: caught up once, or left out
  overlap: skip | wait      a night whose predecessor still runs
  blackouts:                nothing is started then
    - {from: "22:00", to: "06:00", days: [sat, sun]}
    - {start: 2026-12-24T00:00, end: 2026-12-27T00:00, reason: holidays}
  jitter_s: 600             start up to ten minutes later, to spread the load
Scenario files of this machine are read and sent. `traces` and `metrics` are read by the server under the
path they have here (a shared folder), and need a key with the scope admin; `uploads: PATTERN` takes the
newest traces uploaded under such a name.

Cron's five fields are read as Debian's cron reads them, in the zone: when clocks go forward a time that does
not exist runs when the gap is over, when they go back a nightly time runs once.

Exit status of 'run --wait', as of 'asap nightly run': 4 a workload got slower (new in this run); 1 none did,
but one could not be read, somebody not be told, or the run failed or was skipped; 0 neither.

Examples:
  asap schedule add examples/nightly.yaml --name pretraining --cron "30 5 * * *" --zone Europe/Berlin
  asap schedule list
  asap schedule run pretraining --wait
  asap schedule runs pretraining
  asap schedule report pretraining --format html > night.html"""
LOOK_S = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_adding(add_action(actions, "add", "register workloads"))
    add_action(actions, "list", "every schedule, and when it runs next")
    for name, about in ONE.items():
        add_action(actions, name, about).add_argument("schedule", metavar="NAME", help="its name or id")
    actions.choices["run"].add_argument("--wait", action="store_true", help="until it has ended")
    report = actions.choices["report"]
    report.add_argument("--run", metavar="ID", help="of this run; without it of the last that has one")
    report.add_argument(
        "--format", choices=tuple(FORMS), default="markdown", help="how to print it (markdown)"
    )
    add_server(actions)


ONE = {
    "show": "one schedule",
    "pause": "run no more nights",
    "resume": "run nights again, from now on",
    "run": "run it now, whatever the clock says",
    "runs": "what became of its nights",
    "report": "the report of a night",
    "remove": "remove it; the history of its workloads stays",
}


def _add_adding(action: ArgumentParser) -> None:
    action.add_argument(
        "file", metavar="FILE", type=Path, help="workloads and options, as for 'asap nightly'"
    )
    action.add_argument("--name", metavar="NAME", help="what it is called, if the file does not say")
    action.add_argument("--cron", metavar="CRON", help='when: five fields, for instance "30 5 * * *"')
    action.add_argument("--zone", metavar="ZONE", help="of those times, for instance Europe/Berlin (UTC)")


def run(args: Namespace) -> int:
    with connect(args.server) as client:
        return ACTIONS[args.action](client, args) or 0


def _add(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import add_schedule

    _show_one(client.send(add_schedule(_body(args))), as_json=args.json)


def _body(args: Namespace) -> dict[str, Any]:
    """The file with the options in place of what it says, the scenarios that it names, and whole paths."""
    from service.nightly.config import load_yaml, parse, scenario_of
    from service.nightly.schedule import ScheduleSpec, parse_schedule

    given = {name: value for name in ("name", "cron", "zone") if (value := getattr(args, name)) is not None}
    content = {name: value for name, value in load_yaml(args.file, "FILE").items() if name != "report"}
    spec = parse(ScheduleSpec, {**content, **given})
    body: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)
    base = args.file.absolute().parent
    folder = Path(escape(str(base)))  # what follows it is a pattern
    for workload, told in zip(spec.workloads, body["workloads"], strict=True):
        told["scenario"] = scenario_of(workload, base)
        told |= {name: str(folder / told[name]) for name in ("traces", "metrics") if told[name]}
    parse_schedule(body, may_tune=True)  # whether it may tune is the server's to say
    return body


def _list(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import list_schedules

    found: list[Schedule] = []
    cursor: str | None = None
    while True:
        page = client.send(list_schedules(cursor=cursor))
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    if args.json:
        for one in found:
            write_json_line(one.raw)
        return

    print_schedules(found)


def _show(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import get_schedule

    _show_one(client.send(get_schedule(args.schedule)), as_json=args.json)


def _show_one(schedule: "Schedule", *, as_json: bool) -> None:
    if as_json:
        write_json_line(schedule.raw)
        return

    print_schedule(schedule)


def _pause(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import pause_schedule

    _show_one(client.send(pause_schedule(args.schedule)), as_json=args.json)


def _resume(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import resume_schedule

    _show_one(client.send(resume_schedule(args.schedule)), as_json=args.json)


def _run(client: "Client", args: Namespace) -> int:
    from asap_client.schedules import run_schedule

    found = client.send(run_schedule(args.schedule))
    if args.wait:
        found = _waited(client, args.schedule, found.id)
    if args.json:
        write_json_line(found.raw)
    else:
        sys.stdout.write(
            f"{found.id} {found.outcome or found.state}{': ' + found.reason if found.reason else ''}\n"
        )
    if found.state in ("failed", "skipped"):
        raise AsapError(found.reason or f"run {found.id} {found.state}")
    return night_status(found.outcome, found.deliveries or [])


def _waited(client: "Client", schedule: str, id: str) -> "Run":
    import time

    from asap_client.schedules import get_run

    while not (found := client.send(get_run(schedule, id))).is_over:
        time.sleep(LOOK_S)
    return found


def _runs(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import list_runs

    page = client.send(list_runs(args.schedule))
    if args.json:
        for one in page.items:
            write_json_line(one.raw)
        return

    print_runs(page.items)


def _report(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import list_runs, run_report, run_report_text

    id = args.run or next(
        (one.id for one in client.send(list_runs(args.schedule)).items if one.outcome is not None), None
    )
    if id is None:
        raise AsapError(f"no run of {args.schedule} has a report yet; 'asap schedule runs {args.schedule}'")
    if args.json:
        write_json_line(client.send(run_report(args.schedule, id)))
        return
    write_document(client.send(run_report_text(args.schedule, id, FORMS[args.format])))


def _remove(client: "Client", args: Namespace) -> None:
    from asap_client.schedules import remove_schedule

    client.send(remove_schedule(args.schedule))
    if args.json:
        write_json_line({"schedule": args.schedule, "removed": True})


ACTIONS: dict[str, Callable[["Client", Namespace], int | None]] = {
    "add": _add,
    "list": _list,
    "show": _show,
    "pause": _pause,
    "resume": _resume,
    "run": _run,
    "runs": _runs,
    "report": _report,
    "remove": _remove,
}
