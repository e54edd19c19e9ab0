"""`asap export`: a scenario's plan as the configuration of a training framework.

Prints only; what a format can express is `tools.export`'s to know.
"""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_json_line
from tools.export import FORMATS, Export, export_plan
from tools.scenario import parse_scenario

HELP = """\
Write the plan of a scenario as a configuration that a training framework accepts.

The file goes to standard output, what it cannot say (a setting that lives in the
model's code, say) to standard error as notes. A plan that the format cannot express
is refused, with the field and the reason.

formats:
  torchtitan   TOML (torchtitan 0.2), the options of torchtitan 0.3 in its comments
  megatron     arguments of Megatron-LM's scripts, as a bash array
  nemo         YAML overrides of a Megatron-Bridge recipe
  deepspeed    ds_config JSON
  maxtext      YAML on top of base.yml
  accelerate   YAML for accelerate launch --config_file

examples:
  asap export examples/llama-3.1-70b-64xh100.json --format megatron > megatron-args.sh
  asap export scenario.json --format deepspeed --json | jq -r .text > ds_config.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario with a plan, or - for standard input")
    parser.add_argument("--format", required=True, metavar="NAME", help=f"one of {', '.join(FORMATS)}")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: format, file_name, text, notes"
    )


def run(args: Namespace) -> int:
    scenario = parse_scenario(read_object(args.file, MAX_SCENARIO_BYTES))
    export = export_plan(scenario, args.format)
    if args.json:
        write_json_line(asdict(export))
    else:
        _print(export)
    return 0


def _print(export: Export) -> None:
    sys.stdout.write(export.text)
    sys.stdout.flush()
    for note in export.notes:
        sys.stderr.write(f"asap: note: {note}\n")
