"""`asap where`: the same training on other clusters, time against cost."""

import csv
import io
import json
from argparse import ArgumentParser, Namespace

from pydantic import TypeAdapter, ValidationError

from service.cli.import_plan import read_amounts, read_text
from service.cli.io import make_table, naming_arguments, parse_value, read_goal, write_json, write_note
from service.cli.parser import add_options, add_run_goal
from service.cli.predict import compact
from service.strict_json import parse_object
from tools.errors import InfeasibleError, InputError
from tools.frameworks import ImportOptions
from tools.frameworks.start import is_scenario, start_scenario
from tools.frameworks.words import parse_devices
from tools.recommend.where import CandidateCluster, Place, compare_places
from tools.scenario.fields import build, input_error
from tools.scenario.parse import StatedScenario

HELP = """\
Compare clusters for one training: the best plan of each, how long it takes to N tokens and what it costs,
which of them nothing beats in both, and what cannot run it and why.

MODEL is a config.json or a scenario. FILE lists the clusters, as CSV with a header or as JSON:
  devices,price_per_device_hour,name
  512 x H100,2.5,cloud A
  64 nodes of 8 B200,5.2,cloud B
  v5p-1024,2.1,
Further columns: framework, precision, fabric. Model, batch, sequence length and, unless a cluster states
another, precision stay the same. A star marks what no other cluster beats in both time and cost (device-hours
without prices).

Examples:
  asap where examples/llama-3.1-70b.config.json --tokens 15T --clusters clusters.csv
  asap where job.json --tokens 1T --clusters clusters.json --json"""
MAX_CLUSTERS = 500
CANDIDATES = TypeAdapter(list[CandidateCluster])
COLUMNS = ("", "cluster", "plan", ">step", ">days", ">interval", ">device-hours", ">cost")


def add_arguments(parser: ArgumentParser) -> None:
    add_options(
        parser,
        ("model", "MODEL", "a Hugging Face config.json, or a scenario"),
        ("--clusters", "FILE", "the candidates, as CSV or JSON; - for standard input"),
        ("--seq-len", "LENGTH", "tokens per sequence, 8192 or 8k"),
        ("--global-batch-size", "BATCH", 'per step, 512 sequences or "4M tokens"'),
        ("--framework", "NAME", "the training framework (default: megatron-core; maxtext on TPUs)"),
        ("--precision", "NAME", "fp32, fp16, bf16, fp8 ..."),
        ("--json", "", "print one JSON object per cluster, the fastest first"),
    )
    add_run_goal(parser)


def run(args: Namespace) -> None:
    if not args.clusters:
        raise InputError("--clusters", "nothing", "must be a file of clusters, or - for standard input")
    candidates = read_clusters(args.clusters)
    text = read_text(args.model, "MODEL")
    if is_scenario(text):
        body = parse_object(text.encode(), args.model)
    else:
        count, device, _ = parse_devices(candidates[0].devices, "--clusters: devices")
        names = ("framework", "precision")
        stated = {name: getattr(args, name) for name in names} | read_amounts(args)
        options = ImportOptions(
            device=device, num_devices=1 if "global_batch_size" in stated else count, **stated
        )
        with naming_arguments(args, {"text": "MODEL"}):
            start = start_scenario(text, None, options)
        body = dict(start.imported.scenario)
        for key, value in start.assumed.items():
            write_note(f"assumed: {key} {value} (--{key.replace('_', '-')} states another)")
    body["run"] = read_goal(body.get("run"), args)
    places = compare_places(build(StatedScenario, body), candidates)
    if args.json:
        write_json(*(place.model_dump(mode="json") for place in places))
    else:
        print_places(places)
    if not any(place.plan for place in places):
        raise InfeasibleError(f"it runs on none of the clusters: {places[0].reason}")


def read_clusters(source: str) -> list[CandidateCluster]:
    """A JSON array, JSON objects one per line, or CSV."""
    text = read_text(source, "--clusters").strip()
    if text[:1] in "[{":
        try:
            rows = json.loads(text if text[0] == "[" else f"[{','.join(text.splitlines())}]")
        except ValueError as error:
            raise InputError("--clusters", source, f"is not JSON: {error}") from None
    else:
        rows = [
            {
                name: parse_value(cell) if name.startswith("price") else cell
                for name, cell in row.items()
                if cell
            }
            for row in csv.DictReader(io.StringIO(text), skipinitialspace=True)
        ]
    if not 0 < len(rows) <= MAX_CLUSTERS:
        raise InputError("--clusters", f"{len(rows)} clusters", f"allowed: 1 to {MAX_CLUSTERS}")
    try:
        return CANDIDATES.validate_python(rows)
    except ValidationError as error:
        raise input_error(error, list[CandidateCluster], "--clusters") from None


def print_places(places: list[Place]) -> None:
    from rich.console import Console

    rows = []
    for place in places:
        if place.plan and place.prediction and (run := place.prediction.run):
            cost = f"{run.cost:,.0f}" if run.cost is not None else "-"
            days, hours = f"{run.days:,.1f}", f"{run.device_hours:,.0f}"
            interval = f"{run.days_low:,.0f} to {run.days_high:,.0f}"
            step = f"{place.prediction.step_time_s:.3g} s"
            star = "*" if place.is_on_front else ""
            rows.append((star, place.name, compact(place.plan), step, days, interval, hours, cost))
    console = Console(highlight=False)
    if rows:
        console.print(make_table(*COLUMNS, rows=rows, wraps=("cluster", "plan")))
    for place in places:
        if place.reason:
            console.print(f"{place.name}: {place.reason}", markup=False)
