"""`asap explain`: why a plan is, or is not, what ASAP would propose."""

from argparse import ArgumentParser, Namespace

from service.cli.io import MAX_SCENARIO_BYTES, parse_fields, read_object, write_json_line
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.score import complete
from tools.recommend.why_not import explain_plan
from tools.recommend.words import short
from tools.scenario import parse_scenario

HELP = """\
Say what speaks against a plan: the framework's rule, the memory it lacks, or the term that makes it slower.

--plan gives the fields to change, as JSON or as name=value pairs; the rest is taken from the best plan,
and the data-parallel degree follows from the number of devices.

Examples:
  asap explain examples/llama-3.1-70b-64xh100.json --plan tp=2
  asap explain scenario.json --plan tp=8,pp=1,cp=2
  asap explain scenario.json --plan '{"tp": 4, "recompute": "none"}' --json"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    parser.add_argument("--plan", required=True, metavar="FIELDS", help="name=value,... or a JSON object")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: Namespace) -> int:
    scenario = parse_scenario(read_object(args.file, MAX_SCENARIO_BYTES), need_plan=False)
    workload = workload_of(scenario)
    fields = parse_fields(args.plan, "--plan")
    winner = best_plans(workload)[0][0]
    answer = explain_plan(workload, complete(workload, winner, fields), winner)
    if args.json:
        write_json_line({"winner": winner.model_dump(), **answer.model_dump()})
    else:
        print(f"best plan: {short(winner)}\nasked:     {answer.summary}")
        print(f"{answer.binding}: {answer.why}")
    return 0
