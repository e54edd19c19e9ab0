"""`asap export`: a scenario's plan as the configuration of a training framework."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict

from pydantic import JsonValue

from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_json_line
from service.cli.parser import positive_number
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, Export, export_plan
from tools.scenario import parse_scenario
from tools.scenario.fields import get_object

MAX_REPORT_BYTES = 16 * 2**20

HELP = """\
Write the plan of a scenario as a configuration that a training framework accepts: today's, or with --report
a proposal that 'asap optimize --json' printed.

The file goes to standard output; notes about what it cannot express (for example a setting
that lives in the model's code) go to standard error. A plan that the format cannot express
is refused, with the field and the reason.

formats:
  torchtitan   TOML (torchtitan 0.2), the options of torchtitan 0.3 in its comments
  megatron     arguments of Megatron-LM's scripts, as a bash array
  nemo         YAML overrides of a Megatron-Bridge recipe
  deepspeed    ds_config JSON
  maxtext      YAML on top of base.yml
  accelerate   YAML for accelerate launch --config_file
  nanotron     YAML sections of a nanotron run
  automodel    YAML sections of a NeMo Automodel recipe
  huggingface  TrainingArguments as JSON: FSDP 2, DeepSpeed or plain data parallelism

Examples:
  asap export examples/llama-3.1-70b-64xh100.json --format megatron > megatron-args.sh
  asap export scenario.json --format torchtitan --report report.json --proposal 2 > train.toml
  asap export scenario.json --format deepspeed --json | jq -r .text > ds_config.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario with a plan, or - for standard input")
    parser.add_argument("--format", required=True, metavar="NAME", help=f"one of {', '.join(EXPORT_FORMATS)}")
    parser.add_argument("--report", metavar="FILE", help="take the plan from this report of the scenario")
    parser.add_argument(
        "--proposal",
        type=positive_number,
        metavar="N",
        help="rank of the proposal in the report (default: 1)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: format, file_name, text, notes"
    )


def run(args: Namespace) -> int:
    stated = read_object(args.file, MAX_SCENARIO_BYTES)
    if args.report:
        report = read_object(args.report, MAX_REPORT_BYTES, "--report")
        proposal = _find_proposal(report, args.proposal or 1)
        settings = get_object(proposal.get("settings") or {}, "--report: settings")
        stated["plan"] = proposal.get("plan")
        stated["training"] = {**get_object(stated.get("training"), "training"), **settings}
    elif args.proposal:
        raise InputError("--proposal", args.proposal, "needs --report, which contains the proposals")
    export = export_plan(parse_scenario(stated), args.format)
    if args.json:
        write_json_line(asdict(export))
    else:
        _print(export)
    return 0


def _find_proposal(report: Mapping[str, JsonValue], rank: int) -> Mapping[str, JsonValue]:
    """A proposal of the report; its plan and settings are checked with the scenario."""
    proposals = report.get("proposals")
    if not isinstance(proposals, list):
        raise InputError("--report", "no proposals", "must be what 'asap optimize --json' printed")
    if rank > len(proposals):
        raise InputError("--proposal", rank, f"the report has {len(proposals)}")
    return get_object(proposals[rank - 1], f"--report: proposals[{rank - 1}]")


def _print(export: Export) -> None:
    sys.stdout.write(export.text)
    sys.stdout.flush()
    for note in export.notes:
        sys.stderr.write(f"asap: note: {note}\n")
