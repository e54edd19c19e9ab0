"""`asap schedule`: nightly runs scheduled by a server."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from asap_client import schedules as api
from service.cli.io import (
    FORMS,
    add_server,
    connect,
    make_table,
    print_fields,
    safe_text,
    write_document,
    write_json_line,
)
from service.cli.nightly import exit_status
from service.cli.parser import add_action
from tools.errors import AsapError

if TYPE_CHECKING:
    from asap_client.calls import Call
    from asap_client.client import Client
    from tools.nightly.night import Described

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
ACTIONS_ON_ONE = {
    "show": "one schedule",
    "pause": "run no more nights",
    "resume": "run nights again, from now on",
    "run": "run it now, whatever the clock says",
    "runs": "its nights, and how each ended",
    "report": "the report of a night",
    "remove": "remove it; the history of its workloads stays",
}


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adding = add_action(actions, "add", "register workloads")
    adding.add_argument(
        "file", metavar="FILE", type=Path, help="workloads and options, as for 'asap nightly'"
    )
    adding.add_argument("--name", metavar="NAME", help="its name, if the file has none")
    adding.add_argument("--cron", metavar="CRON", help='when: five fields, for instance "30 5 * * *"')
    adding.add_argument("--zone", metavar="ZONE", help="of those times, for instance Europe/Berlin (UTC)")
    add_action(actions, "list", "every schedule, and when it runs next")
    for name, about in ACTIONS_ON_ONE.items():
        add_action(actions, name, about).add_argument("schedule", metavar="NAME", help="its name or id")
    actions.choices["run"].add_argument("--wait", action="store_true", help="until it has ended")
    report = actions.choices["report"]
    report.add_argument("--run", metavar="ID", help="of this run (default: the last one with a report)")
    report.add_argument(
        "--format", choices=tuple(FORMS), default="markdown", help="how to print it (markdown)"
    )
    add_server(actions)


def run(args: Namespace) -> int:
    with connect(args.server) as client:
        return ACTIONS[args.action](client, args) or 0


def _add(client: "Client", args: Namespace) -> None:
    _show_schedule(client.send(api.add_schedule(_body(args))), as_json=args.json)


def _body(args: Namespace) -> "Described":
    """The file with the options in its place, the scenarios that it names, and absolute paths."""
    from service.nightly.config import load_scenario, load_yaml, parse
    from service.nightly.schedule import ScheduleSpec, parse_schedule

    options = {name: value for name in ("name", "cron", "zone") if (value := getattr(args, name)) is not None}
    content = {name: value for name, value in load_yaml(args.file, "FILE").items() if name != "report"}
    spec = parse(ScheduleSpec, {**content, **options})
    body = spec.model_dump(mode="json", by_alias=True)
    base = args.file.absolute().parent
    folder = Path(escape(str(base)))  # what follows it is a pattern
    for workload, written in zip(spec.workloads, body["workloads"], strict=True):
        written["scenario"] = load_scenario(workload, base)
        written |= {name: str(folder / written[name]) for name in ("traces", "metrics") if written[name]}
    parse_schedule(body, may_tune=True)  # the server decides whether it may tune
    return body


def _list(client: "Client", args: Namespace) -> None:
    page = client.send(api.list_schedules())
    schedules = page.items
    while page.next_cursor:
        page = client.send(api.list_schedules(cursor=page.next_cursor))
        schedules += page.items
    if args.json:
        for schedule in schedules:
            write_json_line(schedule.raw)
    else:
        _print_schedules(schedules)


def _on_one(call: "Callable[[str], Call[api.Schedule]]") -> Callable[["Client", Namespace], None]:
    """An action whose answer is the schedule."""

    def act(client: "Client", args: Namespace) -> None:
        _show_schedule(client.send(call(args.schedule)), as_json=args.json)

    return act


def _run(client: "Client", args: Namespace) -> int:
    night = client.send(api.run_schedule(args.schedule))
    if args.wait:
        night = _wait(client, args.schedule, night.id)
    if args.json:
        write_json_line(night.raw)
    else:
        reason = f": {night.reason}" if night.reason else ""
        sys.stdout.write(f"{night.id} {night.outcome or night.state}{reason}\n")
    if night.state in ("failed", "skipped"):
        raise AsapError(night.reason or f"run {night.id} {night.state}")
    return exit_status(night.outcome, [bool(delivery["ok"]) for delivery in night.deliveries or []])


def _wait(client: "Client", schedule: str, id: str) -> api.Run:
    while not (night := client.send(api.get_run(schedule, id))).is_over:
        time.sleep(POLL_S)
    return night


def _runs(client: "Client", args: Namespace) -> None:
    page = client.send(api.list_runs(args.schedule))
    if args.json:
        for night in page.items:
            write_json_line(night.raw)
    else:
        _print_runs(page.items)


def _report(client: "Client", args: Namespace) -> None:
    runs = [] if args.run else client.send(api.list_runs(args.schedule)).items
    id = args.run or next((night.id for night in runs if night.outcome is not None), None)
    if id is None:
        raise AsapError(f"no run of {args.schedule} has a report yet; 'asap schedule runs {args.schedule}'")
    if args.json:
        write_json_line(client.send(api.run_report(args.schedule, id)))
    else:
        write_document(client.send(api.run_report_text(args.schedule, id, FORMS[args.format])))


def _remove(client: "Client", args: Namespace) -> None:
    client.send(api.remove_schedule(args.schedule))
    if args.json:
        write_json_line({"schedule": args.schedule, "removed": True})


ACTIONS: dict[str, Callable[["Client", Namespace], int | None]] = {
    "add": _add,
    "list": _list,
    "show": _on_one(api.get_schedule),
    "pause": _on_one(api.pause_schedule),
    "resume": _on_one(api.resume_schedule),
    "run": _run,
    "runs": _runs,
    "report": _report,
    "remove": _remove,
}


def _print_schedules(schedules: Sequence[api.Schedule]) -> None:
    columns = ("name", "state", "cron", "zone", "next", "workloads", "last night")
    table = make_table(*columns, wraps=columns)
    for schedule in schedules:
        count = str(len(schedule.definition.get("workloads") or []))
        when = (schedule.cron, schedule.zone, _time(schedule.next_at))
        table.add_row(*map(safe_text, (schedule.name, schedule.state, *when, count, _last_night(schedule))))
    _console().print(table if schedules else "no schedules; 'asap schedule add FILE' adds one")


def _show_schedule(schedule: api.Schedule, *, as_json: bool) -> None:
    if as_json:
        write_json_line(schedule.raw)
        return
    rows = {
        "name": schedule.name,
        "id": schedule.id,
        "state": schedule.state,
        "reason": schedule.reason or "",
        "cron": f"{schedule.cron} ({schedule.zone})",
        "next": _time(schedule.next_at),
        "last night": _last_night(schedule),
        "workloads": ", ".join(job["name"] for job in schedule.definition.get("workloads") or []),
    }
    print_fields(rows)


def _print_runs(runs: Sequence[api.Run]) -> None:
    columns = ("id", "planned", "by", "state", "outcome", "reason")
    table = make_table(*columns, wraps=columns)
    for night in runs:
        end = (night.state, night.outcome or "", night.reason or "")
        table.add_row(*map(safe_text, (night.id, _time(night.planned_at), night.trigger, *end)))
    _console().print(table if runs else "no nights yet")


def _last_night(schedule: api.Schedule) -> str:
    last = schedule.last_run
    if last is None:
        return "none yet"
    return f"{_time(last.planned_at)} {last.outcome or last.state}" + (
        f": {last.reason}" if last.reason else ""
    )


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def _console() -> Console:
    """Wide enough for an id beside the rest: what people copy must not be wrapped."""
    return Console(width=max(Console().width, MIN_WIDTH))
