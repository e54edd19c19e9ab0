"""`asap explain`: why a plan is not what ASAP would propose, or why a job is slower than a measured run."""

from argparse import ArgumentParser, Namespace

from service.cli.io import naming_arguments, parse_fields, write_json
from service.cli.optimize import add_request, read_request
from service.cli.parser import add_options, positive_figure
from service.cli.runs import known_runs
from service.render.text import plain
from tools.model.predict import predict
from tools.recommend.against import NEAR, choose_run, compare_with_run
from tools.recommend.optimize import explain_against_best, workload_of
from tools.recommend.words import short
from tools.scenario import Scenario, parse_scenario

HELP = """\
Say what speaks against a plan: the framework's rule, the memory it lacks, or the term that makes it slower.

--plan gives the fields to change, as JSON or as name=value pairs; the rest is taken from the best plan,
and the data-parallel degree follows from the number of devices.

--against asks why the job of FILE is slower than a published run ('asap runs near' lists ids): every setting
that differs, with what taking the run's value alone is predicted to change; how far the settings act on each
other; and what no setting explains. 'near' takes the fastest of the runs most like the job. Give what you
measured by one of the --measured options.

Examples:
  asap explain examples/llama-3.1-70b-64xh100.json --plan tp=2
  asap explain scenario.json --plan '{"tp": 4, "recompute": "none"}' --json
  asap explain examples/llama-3.1-70b-64xh100.json --against near --measured-tflops 380
  asap explain pretrain.sh --devices "128 x H100" --against near --measured-step-s 14.2"""


def add_arguments(parser: ArgumentParser) -> None:
    add_request(parser)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--plan", metavar="FIELDS", help="name=value,... or a JSON object")
    asked.add_argument("--against", metavar="ID", help=f"a measured run, or {NEAR}")
    add_options(
        parser,
        ("--runs", "FILE", "own runs as JSONL, beside the published ones (with --against)"),
        ("--json", "", "print one JSON object and nothing else"),
    )
    measured = parser.add_mutually_exclusive_group()
    for name, about in (
        ("--measured-step-s", "seconds of a step of FILE"),
        ("--measured-tflops", "model TFLOP/s per device of FILE"),
        ("--measured-tokens-per-s", "tokens per second and device of FILE"),
        ("--measured-mfu", "share of the device's peak, 0.41"),
    ):
        measured.add_argument(name, type=positive_figure, metavar="X", help=f"{about} (with --against)")


def run(args: Namespace) -> None:
    scenario = parse_scenario(read_request(args), need_plan=args.plan is None)
    if args.against is not None:
        with naming_arguments(args, {"against": "--against"}):
            found = choose_run(scenario, known_runs(args.runs), args.against)
        comparison = compare_with_run(scenario, found, _measured_step_s(args, scenario))
        if args.json:
            write_json(comparison.model_dump())
        else:
            print(*map(plain, comparison.summary), sep="\n")
        return
    answer = explain_against_best(workload_of(scenario), parse_fields(args.plan, "--plan"))
    if args.json:
        write_json(answer.model_dump())
    else:
        print(f"best plan: {short(answer.winner)}\nasked:     {answer.summary}")
        print(f"{answer.binding}: {answer.why}")


def _measured_step_s(args: Namespace, scenario: Scenario) -> float | None:
    """From whichever figure was given: each is work of a step over its time."""
    predicted = predict([scenario])[0]
    for given, figure in (
        (args.measured_tflops, predicted.model_tflops_per_device),
        (args.measured_tokens_per_s, predicted.tokens_per_s_per_device),
        (args.measured_mfu, predicted.mfu),
    ):
        if given:
            return predicted.step_time_s * figure / float(given)
    return float(args.measured_step_s) if args.measured_step_s else None
