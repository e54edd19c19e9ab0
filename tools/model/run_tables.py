"""Runs from a table, as CSV or Markdown: a row each, its columns named like the fields of a scenario or of
`measured`, over a base scenario that says what all rows share.

    | id | tp | pp | micro_batch_size | step_time_s | peak_memory_gib |
    | -- | -- | -- | ---------------- | ----------- | --------------- |
    | a  | 4  | 2  | 1                | 9.71        | 61.2            |
    | b  | 2  | 2  | 1                | OOM         |                 |

An empty cell leaves what the base says. `dp` follows from the devices if no column has it, and the step time
from `tokens_per_s_per_device`. A plan that did not run has a word in the place of its step time.
"""

import csv
import io
import json
import re
from collections.abc import Sequence

from pydantic import JsonValue

from tools.errors import InputError
from tools.model.logs import log_formats, plain_name
from tools.names import did_you_mean
from tools.scenario import Plan, TrainingSpec
from tools.scenario.fields import get_object
from tools.scenario.spec import StatedCluster

MEASURED = ("step_time_s", "peak_memory_gib", "peak_memory_kind", "tokens_per_s_per_device")
ROW = ("id", "source", "note", "confidence", "release")
CRASHED = ("oom", "crash", "crashed", "failed", "out of memory")
PARTS = {
    "plan": tuple(Plan.model_fields),
    "training": tuple(TrainingSpec.model_fields),
    "cluster": tuple(StatedCluster.model_fields),
    "measured": MEASURED,
}
_RULE = re.compile(r"^\s*\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?$")
"""The second line of a table in Markdown."""
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
Cells = dict[str, str]


def find_table(data: bytes) -> list[Cells] | None:
    """The rows of the first table in a file; None if it has none whose columns say what ran, as a log, an
    event file or an export of step times has none."""
    if b"\0" in data:
        return None
    text = data.decode("utf-8", "replace")
    lines = text.splitlines()
    rule = next((number for number, line in enumerate(lines) if _RULE.match(line) and number), None)
    if rule is not None:
        names = _split(lines[rule - 1])
        body = []
        for line in lines[rule + 1 :]:
            if "|" not in line:
                break
            body.append(dict(zip(names, _split(line), strict=False)))
        return body
    try:
        rows = [{name.strip(): cell or "" for name, cell in row.items() if isinstance(name, str)}
                for row in csv.DictReader(io.StringIO(text), restval="")]  # fmt: skip
    except csv.Error:  # a field longer than the csv module reads
        return None
    says_what_ran = {"id", *(name for part in ("plan", "training", "cluster") for name in PARTS[part])}
    columns = set(rows[0]) if rows else set()
    # A row per step is the history of one run, whatever else of the run stands in each.
    is_history = not {*map(plain_name, columns)}.isdisjoint(log_formats().exports["steps"])
    is_table = not is_history and any(name.rpartition(".")[2] in says_what_ran for name in columns)
    return rows if is_table else None


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows_of_table(table: Sequence[Cells], base: JsonValue, source: str) -> list[JsonValue]:
    """A row of a run for each row of the table, over `base`, a scenario; its values are not checked here.

    Raises InputError that names a column.
    """
    shared = get_object(base, "scenario")
    places = {name: _place(name) for name in (table[0] if table else {})}
    rows: list[JsonValue] = []
    for number, cells in enumerate(table, start=1):
        given: dict[str, dict[str, JsonValue]] = {part: {} for part in ("", "measured")}
        for part in ("model", "cluster", "training", "plan"):
            stated = shared.get(part)
            given[part] = {**stated} if isinstance(stated, dict) else {}
        filled = {places[name]: _value(cell) for name, cell in cells.items() if cell.strip()}
        for (part, name), value in filled.items():
            given[part][name] = value
        row, measured, plan = given.pop(""), given.pop("measured"), given["plan"]
        tp, pp, cp = (_whole(plan.get(name, 1)) for name in ("tp", "pp", "cp"))
        devices, split = _whole(given["cluster"].get("num_devices")), tp * pp * cp
        derives = ("plan", "dp") not in filled and split and devices % split == 0
        if derives and devices // split != plan.get("dp"):
            plan["dp"] = devices // split
            if ("plan", "dp_shard") not in filled:
                plan.pop("dp_shard", None)
        row = {"id": f"{source}-{number:03}", "source": source, "scenario": {**given}, **row}
        step, rate = measured.get("step_time_s"), measured.get("tokens_per_s_per_device")
        if isinstance(step, str) and step.lower() in CRASHED:
            rows.append({**row, "crashed": True})
            continue
        if step is None and isinstance(rate, int | float) and rate > 0 and devices:
            training = given["training"]
            tokens = _whole(training.get("global_batch_size")) * _whole(training.get("seq_len"))
            measured |= {"step_time_s": tokens / devices / rate, "read_from": "tokens_per_s_per_device"}
        rows.append({**row, "measured": measured})
    return rows


def _whole(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


def _place(column: str) -> tuple[str, str]:
    """The part of a row and the field that a column is: `plan.tp` or `tp`."""
    part, _, name = column.strip().lower().rpartition(".")
    part = part.removeprefix("scenario.")
    if name in ROW and part == "":
        return "", name
    if part == "model":
        return part, name
    for known, fields in PARTS.items():
        if name in fields and part in ("", known):
            return known, name
    names = [*ROW, *(name for fields in PARTS.values() for name in fields)]
    raise InputError(f"column {column}", column, f"no field is called so, {did_you_mean(name, names)}")


def _value(cell: str) -> JsonValue:
    text = cell.strip().strip("`*")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value
