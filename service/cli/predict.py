"""`asap predict`: step time, memory and bottleneck of each scenario of a file."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from service.cli.io import JsonRecord, make_table, read_goal, read_records, write_json, write_note
from service.cli.parser import add_calibration, add_run_goal
from service.render.text import plain, size_of
from tools.errors import InputError
from tools.hardware import get_device
from tools.model.basis import ExplainedPrediction, explained
from tools.model.predict import Prediction, predict
from tools.physics.memory import GIB
from tools.recommend.words import format_same_decimals, span
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.spec import DEGREES

HELP = """\
Predict the step time of a training plan, with an 80% interval, its breakdown and its memory.

FILE holds one scenario, or one per line (JSONL). A scenario is a JSON object:
  {"model":    {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
                "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
   "cluster":  {"device": "h100-sxm-80gb", "num_devices": 8, "devices_per_node": 8},
   "training": {"seq_len": 8192, "global_batch_size": 32, "precision": "bf16", "framework": "torchtitan"},
   "plan":     {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8, "zero_stage": 3,
                "micro_batch_size": 1}}
`model` may be a Hugging Face config.json as it is; 'asap hardware list' names the devices, and 'asap import'
makes a scenario from the configuration of today's job. In `plan`, tp x pp x cp x dp is the number of devices
(tensor, pipeline, context and data parallel), dp_shard the ranks over which ZeRO (3 is FSDP) shards.

Examples:
  asap predict examples/llama-3.1-70b-64xh100.json
  asap predict --json plans.jsonl > predictions.jsonl
  cat scenario.json | asap predict -
  asap predict --calibration cluster.json plans.jsonl
  asap predict examples/llama-3.1-70b-64xh100.json --tokens 15T --price 2.5"""
BAR_WIDTH = 30


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="scenarios as JSON or JSONL; - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else")
    add_run_goal(parser)
    add_calibration(parser)


def run(args: Namespace) -> None:
    """A wrong line has its error in its place, unless all are wrong."""
    calibration = None
    if args.calibration:
        from service.cli.calibrate import read_calibration

        calibration, _ = read_calibration(args.calibration)
    parsed = [(record, parse_record(record, args)) for record in read_records(args.file)]
    scenarios = [scenario for _, scenario in parsed if isinstance(scenario, Scenario)]
    predictions = predict(scenarios, calibration)
    remaining = iter(predictions)
    if not args.json:
        if len(predictions) == 1:
            found = explained(scenarios[0], calibration)
            sys.stdout.write("\n".join(describe(scenarios[0], found)) + "\n")
        elif predictions:
            from rich.console import Console  # importing it and drawing with it takes longer than predicting

            names = ("id", "model", "devices", "plan")
            columns = (*names, ">step", ">80% interval", ">MFU", ">GiB", "fits", "bottleneck")
            rows = map(table_row, scenarios, predictions)
            Console(highlight=False).print(make_table(*columns, rows=rows, wraps=(*names, "bottleneck")))
    for record, scenario in parsed if args.json else ():
        if isinstance(scenario, InputError):
            id = None if isinstance(record.content, InputError) else record.content.get("id")
            stated = id if isinstance(id, str | int | float) else None
            write_json({"id": stated, "error": str(scenario), "field": scenario.path})
        else:
            # of many, what each stands on would take far longer than predicting them
            made = next(remaining)
            write_json((explained(scenario, calibration) if len(predictions) == 1 else made).model_dump())
    wrong = [(record.line, error) for record, error in parsed if isinstance(error, InputError)]
    if not scenarios:
        raise wrong[0][1]
    for line, error in wrong:
        write_note(f"line {line}: {error}")


def parse_record(record: JsonRecord, args: Namespace) -> Scenario | InputError:
    if isinstance(record.content, InputError):
        return record.content
    try:
        run = read_goal(record.content.get("run"), args)
        return parse_scenario({**record.content, "run": run})
    except InputError as error:
        return error


def describe(scenario: Scenario, p: ExplainedPrediction) -> list[str]:
    cluster, training, basis = scenario.cluster, scenario.training, p.basis
    device = get_device(cluster.device, cluster.overrides)
    capacity = device.memory_bytes / GIB
    name = f" in {plain(cluster.name)}" if cluster.name else ""
    options = ", ".join(f"{key} {plain(value)}" for key, value in training.options().items())
    verdict = "fits" if p.fits else "does not fit"
    assumed = ", ".join(f"{each.name} {plain(each.value)}" for each in p.assumed)
    return [
        *(plain(f"{finding.message} {finding.measure}") for finding in basis.findings),
        f"{plain(scenario.model.name or 'model')} on {cluster.num_devices} x {device.title}{name}, "
        f"{training.framework}, {training.precision}",
        *([f"  stated      {options}"] if options else []),
        *([f"  assumed     {assumed}"] if assumed else []),
        f"  parameters  {size_of(p.parameters, p.active_parameters)}",
        f"  step time   {p.step_time_s:.3g} s   "
        f"(80% interval {span(p.step_time_low_s, p.step_time_high_s)} s)",
        *([f"  uncertain   {basis.uncertainty_summary}"] if basis.uncertainty_summary else []),
        *([f"  own runs    {plain(basis.own_summary)}"] if basis.own_summary else []),
        f"  nearest run {basis.nearest_summary}",
        f"  throughput  {p.tokens_per_s_per_device:,.0f} tokens/s per device, "
        f"{p.model_tflops_per_device:,.0f} TFLOP/s, MFU {p.mfu:.1%}",
        f"  memory      {p.peak_memory_gib:.1f} of {capacity:.1f} GiB: {verdict} "
        f"(fits with a probability of {p.fit_probability:.0%})",
        f"  bottleneck  {p.bottleneck}",
        *([f"  whole run   {p.run.summary}"] if p.run else []),
        "",
        *_bars("step time", "s", p.breakdown_s, p.step_time_s),
        "",
        *_bars("memory", "GiB", p.memory_gib, capacity),
    ]


def _bars(title: str, unit: str, parts: Mapping[str, float], whole: float) -> list[str]:
    lines = [f"  {title:<18}{unit:>7}  share"]
    for name, value in sorted(parts.items(), key=lambda item: -item[1]):
        share = value / whole
        bar = "█" * round(min(share, 1.0) * BAR_WIDTH)
        lines.append(f"  {name:<18}{value:>7.3g} {share:>6.1%}  {bar}".rstrip())
    return lines


def compact(plan: Plan) -> str:
    """A plan in a column: the degrees above one, and the micro-batch."""
    degrees = [f"{name}{degree}" for name in DEGREES if (degree := getattr(plan, name)) > 1]
    return " ".join([*degrees, f"mbs{plan.micro_batch_size}"])


def table_row(scenario: Scenario, p: Prediction) -> tuple[str, ...]:
    return (
        "" if p.id is None else str(p.id),
        scenario.model.name,
        f"{scenario.cluster.num_devices} {scenario.cluster.device}",
        compact(scenario.plan) if scenario.plan else "",
        f"{p.step_time_s:.3g} s",
        "-".join(format_same_decimals(p.step_time_low_s, p.step_time_high_s)),
        f"{p.mfu:.1%}",
        f"{p.peak_memory_gib:.1f}",
        "yes" if p.fits else "no",
        p.bottleneck,
    )
