"""`asap runs`: check rows of runs, add some from a log or a table, find those most like a scenario."""

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.calibrate import read_runs
from service.cli.io import read_bytes, read_object, read_records, read_scenario, write_json, write_note
from service.cli.parser import add_action, add_actions, positive_number
from service.render.text import counted, plain
from tools.errors import InputError
from tools.model.logs import read_log
from tools.model.near import nearest_runs
from tools.model.published import published_runs
from tools.model.row_checks import CheckedRow, RowFinding, check_rows
from tools.model.run_tables import find_table, rows_of_table
from tools.model.runs import Run
from tools.scenario import parse_scenario

if TYPE_CHECKING:
    from pydantic import JsonValue

HELP = """\
Measured training runs: check rows before anybody learns from them, add rows from a log or a table, and find
the published or own runs that are most like a scenario.

A row is a JSON object, one per line: a scenario with its plan, and what was measured, or that it crashed:
  {"id": "ours-1", "scenario": {...}, "measured": {"step_time_s": 9.7, "peak_memory_gib": 61.2}}
  {"id": "ours-2", "scenario": {...}, "crashed": true}

Examples:
  asap runs check runs.jsonl
  asap runs add results.md --scenario job.json --out runs.jsonl
  asap runs near examples/llama-3.1-70b-64xh100.json -n 3"""
CHECKED = """\
Looked at: the schema, the plan against its framework's rules, the share of the device's peak that a step
would use, memory, links, throughput beside step time, units, batch, order of the degrees, known rows with the
same scenario and time, and how far the step is from the predicted one beside other rows of its source.

An error means that the row cannot be right; a warning, that a second look is due. Exit status 2 if there is
an error."""
ADDED = """\
LOG is what a training program printed, or an export of W&B, MLflow or TensorBoard: one row. A table, as
CSV or Markdown, gives a row each; its columns are named like fields (tp, micro_batch_size, seq_len,
step_time_s, peak_memory_gib, tokens_per_s_per_device, id, note), and --scenario says the rest. An empty cell
leaves what the scenario says; dp follows from the devices; OOM in the place of a step time is a plan that did
not run.

Rows with an error are not added, and the exit status is 2."""
NEAR = """\
Compared are device, framework, kind and size of the model, devices, sequence length, precision and the plan,
if the scenario has one. What differs is shown as theirs -> yours; measured and predicted are of the run."""


def add_arguments(parser: ArgumentParser) -> None:
    actions = add_actions(parser)
    checking = add_action(actions, "check", "print what speaks against each row", check, CHECKED)
    checking.add_argument("file", metavar="FILE", help="rows as JSONL; - for standard input")
    adding = add_action(actions, "add", "append rows from a log or a table", add, ADDED)
    adding.add_argument("files", metavar="LOG", nargs="+", help="logs, CSV files or Markdown tables")
    adding.add_argument("--scenario", metavar="FILE", required=True, help="the job, with what rows share")
    adding.add_argument("--out", metavar="FILE", required=True, help="JSONL file that rows are appended to")
    adding.add_argument("--source", metavar="KEY", help="where the rows are from (default: the file's name)")
    nearing = add_action(actions, "near", "print the measured runs most like a scenario", near, NEAR)
    nearing.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    nearing.add_argument("-n", metavar="N", type=positive_number, default=5, help="how many (default: 5)")
    for action in (checking, nearing):
        action.add_argument("--runs", metavar="FILE", help="own runs as JSONL, beside the published ones")


def run(args: Namespace) -> int | None:
    status: int | None = args.act(args)
    return status


def check(args: Namespace) -> int:
    records = list(read_records(args.file))
    rows = [record.content for record in records if not isinstance(record.content, InputError)]
    readable = iter(check_rows(rows, known_runs(args.runs)))
    checked = [
        CheckedRow("", None, findings=[RowFinding(record.content.path, "error", record.content.rule)])
        if isinstance(record.content, InputError)
        else next(readable)
        for record in records
    ]
    places = [f"line {record.line}" for record in records]
    print_checked(places, checked, args.json)
    return 2 if any(row.is_refused for row in checked) else 0


def add(args: Namespace) -> int:
    base = read_object(args.scenario, argument="--scenario")
    rows: list[JsonValue] = []
    places: list[str] = []
    for file in args.files:
        data = read_bytes(file, argument="LOG")
        stem = Path(file).stem
        table = find_table(data)
        found: list[JsonValue] = []
        try:
            if table is None:
                logged = read_log(data, parse_scenario(base), stem)
                found += [logged.model_copy(update={"source": args.source or stem}).to_data()]
            else:
                found += rows_of_table(table, base, args.source or stem)
        except InputError as error:
            raise error.at(f"LOG {file}: {error.path}") from None
        rows += found
        places += [f"{file} row {number}" for number in range(1, len(found) + 1)]
    out = Path(args.out)
    before = read_runs(args.out, "--out", math.inf) if out.exists() and out.stat().st_size else []
    checked, present = check_rows(rows, [*known_runs(None), *before]), {run.id for run in before}
    for result in checked:
        if result.id in present:
            result.add("id", "error", f"{result.id!r} is in {args.out} already")
    print_checked(places, checked, args.json)
    accepted = [row for row, result in zip(rows, checked, strict=True) if not result.is_refused]
    try:
        with out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in accepted)
    except OSError as error:
        raise InputError("--out", args.out, f"cannot be written: {error.strerror or error}") from None
    write_note(f"{counted(len(accepted), 'row')} added to {args.out}, {len(rows) - len(accepted)} refused")
    return 0 if len(accepted) == len(rows) else 2


def near(args: Namespace) -> None:
    scenario = read_scenario(args.file, need_plan=False)
    found = nearest_runs(scenario, known_runs(args.runs), args.n)
    for near_run in found:
        step_s, predicted_s = near_run.measured_s, near_run.prediction.step_time_s
        if args.json:
            write_json(asdict(near_run.row))
            continue
        print(plain(f"{near_run.run.title} ({near_run.run.source})"))
        print(
            f"  {step_s:.4g} s measured, {predicted_s:.4g} s predicted ({predicted_s / step_s - 1:+.1%}), "
            f"{near_run.tokens_per_s_per_device:,.0f} tokens/s per device"
        )
        print("  differs:", plain("; ".join(map(str, near_run.differences)) or "nothing"))


def known_runs(own: str | None) -> list[Run]:
    return [*published_runs(), *(read_runs(own, "--runs", math.inf) if own else ())]


def print_checked(places: Sequence[str], checked: Sequence[CheckedRow], is_json: bool) -> None:
    """A line per finding; as JSON a line per row, clean ones too."""
    for place, row in zip(places, checked, strict=True):
        if is_json:
            write_json({"row": place, "id": row.id or None, "findings": list(map(asdict, row.findings))})
            continue
        for finding in row.findings:
            name = f"{place} ({row.id})" if row.id else place
            print(plain(f"{name}: {finding}"))
    found = [finding.severity for row in checked for finding in row.findings]
    errors, warnings = (counted(found.count(word), word) for word in ("error", "warning"))
    write_note(f"{counted(len(checked), 'row')}: {errors}, {warnings}")
