"""`asap predict`: step time, memory and bottleneck of each scenario of a file.

Reads and prints only; the prediction is `tools.cost`'s. A bad line of a batch gets an object with `error`
in its place and the rest is predicted; when nothing could be predicted the exit status is 2.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from service.cli.io import JsonRecord, read_object, read_records, write_json_line
from tools.cost.calibration import Calibration
from tools.cost.cluster import parse_cluster_calibration
from tools.cost.predict import Prediction, predict
from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario

HELP = """\
Predict the step time of a training plan, with an 80% interval, its breakdown and its memory.

FILE holds one scenario, or one a line (JSONL). A scenario is a JSON object:
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
    parser.add_argument("--json", action="store_true", help="print one JSON object a line and nothing else")
    parser.add_argument(
        "--calibration", metavar="FILE", help="a cluster's measured constants, from 'asap diagnose'"
    )


def run(args: Namespace) -> int:
    calibration = _read_calibration(args.calibration)
    records = list(read_records(args.file))
    outcomes = [_parsed(record) for record in records]
    scenarios = [outcome for outcome in outcomes if isinstance(outcome, Scenario)]
    predictions = predict(scenarios, calibration)
    if args.json:
        _print_lines(records, outcomes, predictions)
    else:
        from service.cli.predict_tables import print_predictions

        print_predictions(scenarios, predictions)
    return _report_errors(records, outcomes)


def _read_calibration(source: str | None) -> Calibration | None:
    if source is None:
        return None
    return parse_cluster_calibration(read_object(source, argument="--calibration"), "--calibration").apply()


def _parsed(record: JsonRecord) -> Outcome:
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
            write_json_line(next(remaining))


def _identity(record: JsonRecord) -> object:
    found = None if isinstance(record.content, InputError) else record.content.get("id")
    return found if isinstance(found, str | int | float) else None


def _report_errors(records: Sequence[JsonRecord], outcomes: Sequence[Outcome]) -> int:
    wrong = [(r.line, o) for r, o in zip(records, outcomes, strict=True) if isinstance(o, InputError)]
    if len(wrong) == len(records):
        raise wrong[0][1]
    for line, error in wrong:
        print(f"asap: line {line}: {error}", file=sys.stderr)
    return 0
