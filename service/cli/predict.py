"""`asap predict`: step time, memory and bottleneck of each scenario of a file."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from service.cli.io import JsonRecord, make_table, read_records, safe_text, write_json_line
from service.cli.parser import add_calibration
from service.render.text import plain, size_of
from tools.cost.memory import GIB
from tools.cost.predict import Prediction, predict
from tools.errors import InputError
from tools.hardware import get_device
from tools.recommend.words import format_same_decimals, span
from tools.scenario import Scenario, parse_scenario

if TYPE_CHECKING:
    from rich.table import Table

BAR_WIDTH = 30


def print_predictions(scenarios: Sequence[Scenario], predictions: Sequence[Prediction]) -> None:
    if len(predictions) == 1:
        sys.stdout.write("\n".join(_lines(scenarios[0], predictions[0])) + "\n")
    elif predictions:
        from rich.console import Console  # importing it and drawing with it takes longer than predicting

        Console(highlight=False).print(_many(scenarios, predictions))


def _lines(scenario: Scenario, p: Prediction) -> list[str]:
    """One prediction in full."""
    cluster, training = scenario.cluster, scenario.training
    device = get_device(cluster.device, cluster.overrides)
    capacity = device.memory_bytes / GIB
    name = f" in {plain(cluster.name)}" if cluster.name else ""
    options = ", ".join(f"{key} {plain(value)}" for key, value in training.options().items())
    verdict = "fits" if p.fits else "does not fit"
    return [
        f"{plain(scenario.model.name or 'model')} on {cluster.num_devices} x {device.title}{name}, "
        f"{training.framework}, {training.precision}",
        *([f"  stated      {options}"] if options else []),
        f"  parameters  {size_of(p.parameters, p.active_parameters)}",
        f"  step time   {_seconds(p.step_time_s)}   "
        f"(80% interval {span(p.step_time_low_s, p.step_time_high_s)} s)",
        f"  throughput  {p.tokens_per_s_per_device:,.0f} tokens/s per device, "
        f"{p.model_tflops_per_device:,.0f} TFLOP/s, MFU {p.mfu:.1%}",
        f"  memory      {p.peak_memory_gib:.1f} of {capacity:.1f} GiB: {verdict} "
        f"(fits with a probability of {p.fit_probability:.0%})",
        f"  bottleneck  {p.bottleneck}",
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


def _many(scenarios: Sequence[Scenario], predictions: Sequence[Prediction]) -> "Table":
    names = ("id", "model", "devices", "plan")
    table = make_table(
        *names, ">step", ">80% interval", ">MFU", ">GiB", "fits", "bottleneck", wraps=(*names, "bottleneck")
    )
    for scenario, p in zip(scenarios, predictions, strict=True):
        table.add_row(*map(safe_text, _row(scenario, p)))
    return table


def _row(scenario: Scenario, p: Prediction) -> list[str]:
    interval = "-".join(format_same_decimals(p.step_time_low_s, p.step_time_high_s))
    return [
        "" if p.id is None else str(p.id),
        scenario.model.name,
        f"{scenario.cluster.num_devices} {scenario.cluster.device}",
        _plan(scenario),
        _seconds(p.step_time_s),
        interval,
        f"{p.mfu:.1%}",
        f"{p.peak_memory_gib:.1f}",
        "yes" if p.fits else "no",
        p.bottleneck,
    ]


def _plan(scenario: Scenario) -> str:
    """The degrees above one, and the micro-batch."""
    if scenario.plan is None:
        return ""
    degrees = {name: getattr(scenario.plan, name) for name in ("tp", "pp", "vpp", "cp", "ep", "dp")}
    parts = [f"{name}{value}" for name, value in degrees.items() if value > 1]
    return " ".join([*parts, f"mbs{scenario.plan.micro_batch_size}"])


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


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
  asap predict --calibration cluster.json plans.jsonl"""

Outcome = Scenario | InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="scenarios as JSON or JSONL; - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else")
    add_calibration(parser)


def run(args: Namespace) -> int:
    calibration = None
    if args.calibration:
        from service.cli.calibrate import read_calibration

        calibration = read_calibration(args.calibration)
    records = list(read_records(args.file))
    outcomes = [_parse(record) for record in records]
    scenarios = [outcome for outcome in outcomes if isinstance(outcome, Scenario)]
    predictions = predict(scenarios, calibration)
    if args.json:
        _print_lines(records, outcomes, predictions)
    else:
        print_predictions(scenarios, predictions)
    return _report_errors(records, outcomes)


def _parse(record: JsonRecord) -> Outcome:
    if isinstance(record.content, InputError):
        return record.content
    try:
        return parse_scenario(record.content)
    except InputError as error:
        return error


def _print_lines(
    records: Sequence[JsonRecord], outcomes: Sequence[Outcome], predictions: Sequence[Prediction]
) -> None:
    remaining = iter(predictions)
    for record, outcome in zip(records, outcomes, strict=True):
        if isinstance(outcome, InputError):
            write_json_line({"id": _identity(record), "error": str(outcome), "field": outcome.field})
        else:
            write_json_line(next(remaining).model_dump())


def _identity(record: JsonRecord) -> object:
    id = None if isinstance(record.content, InputError) else record.content.get("id")
    return id if isinstance(id, str | int | float) else None


def _report_errors(records: Sequence[JsonRecord], outcomes: Sequence[Outcome]) -> int:
    wrong = [(r.line, o) for r, o in zip(records, outcomes, strict=True) if isinstance(o, InputError)]
    if len(wrong) == len(records):
        raise wrong[0][1]
    for line, error in wrong:
        print(f"asap: line {line}: {error}", file=sys.stderr)
    return 0
