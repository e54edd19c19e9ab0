"""Runs of one cluster: a scenario and what was measured of it, or that it crashed.

From `asap calibrate` and `POST /v1/measurements`, or from what training programs print or export: log lines
of Megatron-LM, torchtitan and nanotron, CSV exports of Weights & Biases and TensorBoard. A calibration file
holds its runs, so that a later release reads them with its own model.
"""

import csv
import io
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tools.cost.constants import definitions
from tools.cost.terms import STEP_TERMS
from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario
from tools.scenario.fields import Allowed, JsonObject, build, get_object, refuse_unknown

MAX_RUNS = 500
"""Of a cluster: the update solves for all runs at once."""
FORMAT = "asap-calibration-2"

PIPELINE = "pipeline"
"""Transfers and bubble, which a trace shows as one term."""

OWN_SOURCES = frozenset({"trial", "probe"})
"""Measured by ASAP itself, in one go."""

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Measured(BaseModel):
    """What was measured of a run; absent is what was not. Further figures are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step_time_s: Annotated[Above0 | None, Allowed("seconds above 0")] = None
    peak_memory_gib: Annotated[Above0 | None, Allowed("GiB above 0")] = None
    noise: Annotated[float, Field(ge=0, le=1), Allowed("from 0 to 1")] = 0.0
    """Of the step time: a standard deviation of its logarithm."""
    terms_s: Annotated[dict[str, Above0], Allowed("an object of seconds above 0 by term")] = {}
    """Seconds of parts of the step, from a profile."""
    constants: Annotated[dict[str, Above0], Allowed("an object of numbers above 0 by constant")] = {}
    """Constants of the cost model measured by themselves, by a probe or from kernels of a trace."""


@dataclass(frozen=True)
class Run:
    """One run: its step time, its peak, both, or a crash."""

    scenario: Scenario
    measured: Measured
    crashed: bool = False
    id: str = ""
    source: str = "upload"
    """What measured it: upload, trial, nightly, trace, callback, import, probe."""

    @property
    def title(self) -> str:
        return self.id or self.scenario.model.name or "run"

    def to_data(self) -> JsonObject:
        scenario = json.loads(self.scenario.model_dump_json(exclude_none=True))
        row: JsonObject = {"id": self.id, "source": self.source, "scenario": scenario}
        outcome = (
            {"crashed": True}
            if self.crashed
            else {"measured": self.measured.model_dump(exclude_defaults=True)}
        )
        return {**row, **outcome}


def parse_run(data: Mapping[str, JsonValue], place: str = "") -> Run:
    """Raises InputError that names the field, with `place` ("runs[3].") before it."""
    stated = get_object(data.get("scenario"), f"{place}scenario")
    try:
        scenario = parse_scenario(stated)
    except InputError as error:
        raise InputError(f"{place}scenario.{error.field}", error.given, error.allowed) from error
    id = "" if data.get("id") is None else str(data["id"])[:200]
    crashed = data.get("crashed", False)
    if not isinstance(crashed, bool):
        raise InputError(f"{place}crashed", crashed, "allowed: true or false")
    if crashed:
        measured = Measured()
    else:
        measured = _measured(get_object(data.get("measured"), f"{place}measured"), f"{place}measured.")
    if scenario.plan is None and not measured.constants:
        raise InputError(f"{place}scenario.plan", None, "the plan that was run is needed")
    return Run(scenario, measured, crashed, id, _source(data.get("source")))


def _measured(stated: JsonObject, place: str) -> Measured:
    measured = build(Measured, stated, place)
    refuse_unknown(measured.terms_s, (*STEP_TERMS, PIPELINE), f"{place}terms_s.")
    refuse_unknown(measured.constants, [d.name for d in definitions()], f"{place}constants.")
    if measured.step_time_s is None and measured.peak_memory_gib is None and not measured.constants:
        raise InputError(f"{place}step_time_s", None, "a step time or a peak_memory_gib is needed")
    return measured


def _source(value: JsonValue) -> str:
    """Published measurements have an object with a key here."""
    if isinstance(value, dict):
        value = value.get("key")
    return value[:40] if isinstance(value, str) and value else "upload"


def parse_runs(rows: Sequence[JsonValue], place: str = "runs") -> list[Run]:
    if not rows:
        raise InputError(place, [], "at least one run is needed")
    if len(rows) > MAX_RUNS:
        raise InputError(place, len(rows), f"at most {MAX_RUNS} runs at once")
    return [
        parse_run(get_object(row, f"{place}[{number}]"), f"{place}[{number}].")
        for number, row in enumerate(rows)
    ]


def to_file(name: str, runs: Sequence[Run]) -> JsonObject:
    return {"format": FORMAT, "cluster": name, "runs": [run.to_data() for run in runs]}


def parse_file(data: Mapping[str, JsonValue], place: str) -> tuple[str, list[Run]]:
    """What `to_file` gave: the cluster's name and its runs."""
    if data.get("format") != FORMAT:
        raise InputError(f"{place}: format", data.get("format"), f"must be {FORMAT!r}")
    rows, name = data.get("runs"), data.get("cluster")
    if not isinstance(rows, list):
        raise InputError(f"{place}: runs", type(rows).__name__, "must be a list of runs")
    return name if isinstance(name, str) else "", parse_runs(rows, f"{place}: runs")


MIN_STEPS = 3
WARMUP_SHARE = 0.2
"""Of the steps, at the beginning: compilation, caches and first allocations."""
MIB, GIB = 2.0**20, 2.0**30
_ITERATION = re.compile(r"elapsed[ _]time[ _]per[ _]iteration[ _](?:\(ms\)|ms): *([0-9.]+)([KM]?)")
"""Megatron-LM: `elapsed time per iteration (ms): 1234.5`; nanotron has underscores, and thousands as K."""
_RESERVED = re.compile(r"max[ _]reserved(?:[^:|]*)?: *([0-9.]+)")
"""Megatron-LM's memory report, in MB of 2**20 bytes."""
_TOKENS = re.compile(r"\btps: *([0-9,.]+)")
"""torchtitan: tokens per second and device."""
_MEMORY = re.compile(r"\bmemory: *([0-9.]+)GiB")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TIMES = ("step_time_s", "step_time", "iteration_time", "time_per_step", "elapsed_time_per_iteration")
_TIMES_MS = ("step_time_ms", "iteration_time_ms", "elapsed_time_per_iteration_ms")
_MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6}


def read_log(text: str, scenario: Scenario, id: str = "") -> Run:
    """The run that the text is of; raises InputError if it shows fewer than three steps."""
    times_s, peaks = _from_lines(_COLOURS.sub("", text).splitlines(), scenario)
    if not times_s:
        times_s = _from_table(text)
    if len(times_s) < MIN_STEPS:
        allowed = (
            f"at least {MIN_STEPS} steps are needed, as lines of Megatron-LM, torchtitan or nanotron, or as "
            "a CSV export with a column of step times"
        )
        raise InputError("LOG", f"{len(times_s)} steps", allowed)
    steady = times_s[int(len(times_s) * WARMUP_SHARE) :]
    middle = statistics.median(steady)
    spread = 1.4826 * statistics.median(abs(time_s - middle) for time_s in steady) / middle
    measured = Measured(
        step_time_s=middle,
        peak_memory_gib=max(peaks) if peaks else None,
        noise=min(spread / len(steady) ** 0.5, 1.0),
    )
    return Run(scenario, measured, id=id, source="import")


def _from_lines(lines: Iterable[str], scenario: Scenario) -> tuple[list[float], list[float]]:
    tokens = scenario.training.global_batch_size * scenario.training.seq_len / scenario.cluster.num_devices
    times_s, peaks = [], []
    for line in lines:
        if match := _ITERATION.search(line):
            times_s.append(float(match[1]) * _MULTIPLES[match[2]] / 1e3)
        elif match := _TOKENS.search(line):
            rate = float(match[1].replace(",", ""))
            times_s += [tokens / rate] if rate else []
        if match := _RESERVED.search(line):
            peaks.append(float(match[1]) * MIB / GIB)
        elif match := _MEMORY.search(line):
            peaks.append(float(match[1]))
    return times_s, peaks


def _from_table(text: str) -> list[float]:
    rows = list(csv.DictReader(io.StringIO(text)))
    names = {_plain(name): name for name in (rows[0] if rows else {}) if name}
    for known, unit in ((_TIMES, 1.0), (_TIMES_MS, 1e3)):
        for plain, name in names.items():
            if plain in known or any(plain.endswith(f"_{word}") for word in known):
                return [value / unit for value in _numbers(rows, name) if value > 0]
    if {"wall_time", "step"} <= names.keys():  # TensorBoard: any scalar, since it has the clock beside it
        clock, step = _numbers(rows, names["wall_time"]), _numbers(rows, names["step"])
        pairs = zip(clock, clock[1:], step, step[1:], strict=False)
        return [(end - start) / (b - a) for start, end, a, b in pairs if b > a and end > start]
    return []


def _plain(name: str) -> str:
    """`train/Step Time (s)` as train_step_time_s."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _numbers(rows: Sequence[dict[str, str]], name: str) -> list[float]:
    values = []
    for row in rows:
        try:
            values.append(float(row[name]))
        except (KeyError, TypeError, ValueError):
            continue
    return values
