"""`asap optimize`: search every legal plan of a scenario and propose the three best that really differ.

Reads and prints only; the search and the reasons are `tools.recommend`'s.
"""

import sys
from argparse import ArgumentParser, Namespace

from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_json_line
from tools.recommend.optimize import optimize
from tools.scenario import parse_scenario

HELP = """\
Search every legal plan of a workload and propose the best, with reasons that can be checked.

FILE holds one scenario. Its `plan` is today's configuration; leave it out for a cold start.
Nothing is proposed that does not fit or that the framework refuses, and the training contract
(model, batch, sequence length, precision) is never changed.

`constraints` in the scenario restricts the search:
  "constraints": {"tp": [4, 8], "pp": 2}        allowed or fixed values of any plan field
  "constraints": {"max_memory_fraction": 0.85}  share of the device's memory that may be filled
  "constraints": {"keep_checkpoint_layout": true}   tp and pp stay as they are
  "constraints": {"max_changes": 2}             at most so many fields differ from today's plan

Exit status 3: nothing legal fits, and the message says what would make it fit.

Examples:
  asap optimize examples/llama-3.1-70b-64xh100.json
  asap optimize --json scenario.json | jq '.proposals[0].plan'"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    parser.add_argument(
        "--json", action="store_true", help="print the report as one JSON object and nothing else"
    )


def run(args: Namespace) -> int:
    scenario = parse_scenario(read_object(args.file, MAX_SCENARIO_BYTES), need_plan=False)
    if args.json:
        write_json_line(optimize(scenario))
        return 0
    from service.cli.optimize_tables import print_report, shown_progress

    with shown_progress(sys.stderr) as progress:
        report = optimize(scenario, progress)
    print_report(scenario, report)
    return 0
