"""Runs of one cluster, as `asap calibrate` and `POST /v1/measurements` take them: a scenario and what was
measured of it, or that it crashed. A calibration file holds its runs, so that a later release reads them
with its own model.
"""

import json
from collections.abc import Mapping, Sequence
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
