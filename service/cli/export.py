"""`asap export`: a scenario's plan as the configuration of a training framework."""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from service.cli.io import naming_arguments, read_object, write_json, write_note
from service.cli.parser import add_options
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, export_plan
from tools.frameworks.formats import REGISTRY
from tools.scenario import Scenario, parse_scenario
from tools.scenario.fields import get_object

FORMATS = "\n".join(
    f"  {name:12} {REGISTRY[name].writes}\n  {'':12} judged by {REGISTRY[name].judged_by}"
    for name in EXPORT_FORMATS
)
HELP = f"""\
Write the plan of a scenario as a configuration that a training framework accepts: today's, or with --report
a proposal that 'asap optimize --json' printed.

The file goes to standard output; notes about what it cannot express (for example a setting
that lives in the model's code) go to standard error. A plan that the format cannot express
is refused, with the field and the reason.

formats:
{FORMATS}

Examples:
  asap export examples/llama-3.1-70b-64xh100.json --format megatron > megatron-args.sh
  asap export --report report.json --proposal 2 --format torchtitan > train.toml
  asap export scenario.json --format deepspeed --json | jq -r .text > ds_config.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    about = "a scenario with a plan, or - for standard input (default: the scenario of the report)"
    parser.add_argument("file", metavar="FILE", nargs="?", help=about)
    parser.add_argument("--format", required=True, metavar="NAME", help=f"one of {', '.join(EXPORT_FORMATS)}")
    add_options(
        parser,
        ("--report", "FILE", "take the plan from this report of 'asap optimize --json'"),
        ("--proposal", "N", "rank of the proposal in the report (default: 1)"),
        ("--json", "", "print one JSON object: format, file_name, text, judged_by, notes"),
    )


def run(args: Namespace) -> None:
    if not args.file and not args.report:
        raise InputError("FILE", "nothing", "must be a scenario with a plan, or give --report")
    if args.report:
        _, scenario = read_proposal(args.report, args.proposal or 1, "--proposal", args.file)
    elif args.proposal:
        raise InputError("--proposal", args.proposal, "needs --report, which contains the proposals")
    else:
        scenario = parse_scenario(read_object(args.file))
    with naming_arguments(args):
        export = export_plan(scenario, args.format)
    if args.json:
        write_json(asdict(export))
        return
    sys.stdout.write(export.text)
    sys.stdout.flush()
    for note in export.notes:
        write_note(f"note: {note}")


def read_proposal(source: str, rank: int, option: str, other: str | None = None) -> tuple[Scenario, Scenario]:
    """A report's scenario (or that of another file), and the same with a proposal's plan and settings."""
    report = read_object(source, argument="--report")
    proposals = report.get("proposals")
    if not isinstance(proposals, list):
        raise InputError("--report", "no proposals", "must be what 'asap optimize --json' printed")
    if rank > len(proposals):
        raise InputError(option, rank, f"the report has {len(proposals)}")
    if not other and not report.get("scenario"):
        rule = "a report of version 0.2 has none; run 'asap optimize' again"
        raise InputError("--report", "no scenario", rule)
    today = read_object(other) if other else get_object(report["scenario"], "--report: scenario")
    # Plan and settings are checked with the scenario.
    proposal = get_object(proposals[rank - 1], f"--report: proposals[{rank - 1}]")
    settings = get_object(proposal.get("settings") or {}, "--report: settings")
    training = {**get_object(today.get("training"), "training"), **settings}
    changed = {**today, "plan": proposal.get("plan"), "training": training}
    return parse_scenario(today, need_plan=False), parse_scenario(changed)
