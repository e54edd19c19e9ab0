"""`asap schedule`: nightly runs by the clock of a server. Speaks to it through `service.client`."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.io import write_json_line
from tools.errors import AsapError, InputError

if TYPE_CHECKING:
    from service.client import Client
    from service.client_schedules import Run, Schedule

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

Examples:
  asap schedule add nightly.yaml --name pretraining --cron "30 5 * * *" --zone Europe/Berlin
  asap schedule list
  asap schedule run pretraining --wait
  asap schedule runs pretraining
  asap schedule report pretraining --format html > night.html"""
LOOK_S = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_adding(actions.add_parser("add", help="register workloads", allow_abbrev=False))
    actions.add_parser("list", help="every schedule, and when it runs next", allow_abbrev=False)
    for name, about in ONE.items():
        action = actions.add_parser(name, help=about, allow_abbrev=False)
        action.add_argument("schedule", metavar="NAME", help="its name or id")
    actions.choices["run"].add_argument("--wait", action="store_true", help="until it has ended")
    report = actions.choices["report"]
    report.add_argument("--run", metavar="ID", help="of this run; without it of the last that has one")
    report.add_argument("--format", choices=("markdown", "html"), default="markdown", help="(markdown)")
    for action in actions.choices.values():
        action.add_argument("--server", metavar="URL", help="its address (ASAP_SERVER)")
        action.add_argument("--json", action="store_true", help="print one JSON object a line")
        # Known to `asap schedule` already; suppressed here so that the outer one keeps its value.
        action.add_argument("--debug", action="store_true", default=SUPPRESS, help=SUPPRESS)


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
    with _client(args.server) as client:
        return ACTIONS[args.action](client, args) or 0


def _client(server: str | None) -> "Client":
    from service.client import Client
    from service.settings import load_settings

    settings = load_settings()
    key = settings.api_key.get_secret_value() if settings.api_key else None
    try:
        return Client(server or settings.server, key)
    except InputError as error:
        raise InputError("--server", error.given, error.allowed) from None


def _add(client: "Client", args: Namespace) -> None:
    from service.client_schedules import add_schedule

    _show_one(client.send(add_schedule(_body(args))), as_json=args.json)


def _body(args: Namespace) -> dict[str, Any]:
    """The file with the options in place of what it says, the scenarios that it names, and whole paths."""
    from service.nightly.config import load_yaml, scenario_of
    from service.nightly.definition import parse
    from service.nightly.schedules.spec import ScheduleSpec, parse_schedule

    given = {name: value for name in ("name", "cron", "zone") if (value := getattr(args, name)) is not None}
    content = {name: value for name, value in load_yaml(args.file, "FILE").items() if name != "report"}
    spec = parse(ScheduleSpec, {**content, **given})
    body: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)
    base = args.file.absolute().parent
    for workload, told in zip(spec.workloads, body["workloads"], strict=True):
        told["scenario"] = scenario_of(workload, base)
        told |= {name: str(base / told[name]) for name in ("traces", "metrics") if told[name]}
    parse_schedule(body, may_tune=True)  # whether it may tune is the server's to say
    return body


def _list(client: "Client", args: Namespace) -> None:
    from service.client_schedules import list_schedules

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
            write_json_line(one.model_dump(mode="json"))
        return
    from service.cli.schedule_tables import print_schedules

    print_schedules(found)


def _show(client: "Client", args: Namespace) -> None:
    from service.client_schedules import get_schedule

    _show_one(client.send(get_schedule(args.schedule)), as_json=args.json)


def _show_one(schedule: "Schedule", *, as_json: bool) -> None:
    if as_json:
        write_json_line(schedule.model_dump(mode="json"))
        return
    from service.cli.schedule_tables import print_schedule

    print_schedule(schedule)


def _pause(client: "Client", args: Namespace) -> None:
    from service.client_schedules import pause_schedule

    _show_one(client.send(pause_schedule(args.schedule)), as_json=args.json)


def _resume(client: "Client", args: Namespace) -> None:
    from service.client_schedules import resume_schedule

    _show_one(client.send(resume_schedule(args.schedule)), as_json=args.json)


def _run(client: "Client", args: Namespace) -> None:
    from service.client_schedules import run_schedule

    found = client.send(run_schedule(args.schedule))
    if args.wait:
        found = _waited(client, args.schedule, found.id)
    if args.json:
        write_json_line(found.model_dump(mode="json"))
    else:
        sys.stdout.write(
            f"{found.id} {found.outcome or found.state}{': ' + found.reason if found.reason else ''}\n"
        )
    if found.state == "failed":
        raise AsapError(found.reason or f"run {found.id} failed")


def _waited(client: "Client", schedule: str, id: str) -> "Run":
    import time

    from service.client_schedules import get_run

    while not (found := client.send(get_run(schedule, id))).is_over:
        time.sleep(LOOK_S)
    return found


def _runs(client: "Client", args: Namespace) -> None:
    from service.client_schedules import list_runs

    page = client.send(list_runs(args.schedule))
    if args.json:
        for one in page.items:
            write_json_line(one.model_dump(mode="json"))
        return
    from service.cli.schedule_tables import print_runs

    print_runs(page.items)


def _report(client: "Client", args: Namespace) -> None:
    from service.client_schedules import list_runs, run_report, run_report_text

    id = args.run or next(
        (one.id for one in client.send(list_runs(args.schedule)).items if one.outcome is not None), None
    )
    if id is None:
        raise AsapError(f"no run of {args.schedule} has a report yet; 'asap schedule runs {args.schedule}'")
    if args.json:
        write_json_line(client.send(run_report(args.schedule, id)))
        return
    form = "text/html" if args.format == "html" else "text/markdown"
    sys.stdout.write(client.send(run_report_text(args.schedule, id, form)))  # type: ignore[arg-type]


def _remove(client: "Client", args: Namespace) -> None:
    from service.client_schedules import remove_schedule

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
