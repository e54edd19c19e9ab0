"""Runs: a scenario and what was measured of it, or that it crashed.

One shape for published runs (runs/ in the repo) and for those of a cluster: from `asap calibrate` and
`POST /v1/measurements`, or from logs (tools/model/logs.py). A calibration file holds its runs, so that a
later release reads them with its own model.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from tools.errors import InputError
from tools.model.constants import constant_priors
from tools.names import did_you_mean
from tools.physics.terms import STEP_TERMS
from tools.scenario import Scenario, parse_scenario
from tools.scenario.fields import (
    Allowed,
    FromList,
    JsonObject,
    StrictModel,
    build,
    get_object,
    refuse_unknown,
)
from tools.scenario.spec import PLAN_ROLES

MAX_RUNS = 500
"""Runs of one cluster: the update solves for all of them at once."""
FORMAT = "asap-calibration-2"

PIPELINE = "pipeline"
"""Transfers and bubble, which a trace shows as one term."""

OWN_SOURCES = frozenset({"trial", "probe"})
"""Measured by ASAP itself, in one go."""

RETIRED_CONSTANTS = frozenset({"alltoall_cost"})
"""Constants of earlier releases, which runs that installations keep still name."""
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Measured(StrictModel):
    """What was measured of a run; absent is what was not."""

    step_time_s: Annotated[Above0 | None, Allowed("seconds above 0")] = None
    peak_memory_gib: Annotated[Above0 | None, Allowed("GiB above 0")] = None
    peak_memory_kind: Literal["allocated", "reserved"] | None = None
    """What the allocator gave out, or what it held; absent: the source did not say."""
    peak_memory_of: str = ""
    """The rank, if only one was read: "rank 0"."""
    device_memory_used_gib: Above0 | None = None
    """What the device reported in use, other processes and fragments included."""
    last_stage_memory_gib: Above0 | None = None
    tokens_per_s_per_device: Above0 | None = None
    read_from: str = ""
    """The figure that the source printed, from which the step time follows."""
    noise: Annotated[float, Field(ge=0, le=1), Allowed("from 0 to 1")] = 0.0
    """Standard deviation of the logarithm of the step time."""
    terms_s: Annotated[dict[str, Above0], Allowed("an object of seconds above 0 by term")] = Field(
        default_factory=dict
    )
    """Seconds of parts of the step, from a profile."""
    constants: Annotated[dict[str, Above0], Allowed("an object of numbers above 0 by constant")] = Field(
        default_factory=dict
    )
    """Constants of the cost model measured by themselves, by a probe or from kernels of a trace."""


def _is_plan_field(name: str) -> str:
    if name not in PLAN_ROLES:
        raise ValueError(f"unknown plan field, {did_you_mean(name, PLAN_ROLES)}")
    return name


class Run(StrictModel):
    """One run: its step time, its peak, both, or a crash."""

    scenario: Scenario
    measured: Measured = Measured()
    crashed: bool = False
    id: str = ""
    source: str = "upload"
    """What measured it: upload, trial, nightly, trace, callback, import, probe; or the key of a published
    source in runs/sources.toml."""
    path: str = ""
    """Where in the source, if it has several places."""
    release: str = ""
    """Which release of the source, if it has several."""
    left_open: Annotated[tuple[Annotated[str, AfterValidator(_is_plan_field)], ...], FromList] = ()
    """Plan fields that the source did not state; their values are the framework's defaults."""
    confidence: Literal["high", "medium", "low"] | None = None
    """Low: kept out of headline figures."""
    checked: bool = False
    """Read a second time against its source."""
    workload: str = ""
    """The sweep it belongs to: plans of one workload, tried side by side."""
    older_release: bool = False
    """A newer release of the source has the same plan too."""
    group: str = ""
    """Runs that resemble each other, left out together; empty: those of one source, device and model."""
    context: dict[str, JsonValue] = Field(default_factory=dict)
    """What the scenario has no field for."""
    note: str = ""
    is_legal: bool = True
    """False: a published plan that crashed and breaks a rule of its framework."""

    @property
    def title(self) -> str:
        return self.id or self.scenario.model.name or "run"

    def to_data(self) -> JsonObject:
        """The row that `parse_run` reads."""
        scenario = json.loads(self.scenario.model_dump_json(exclude_none=True))
        derived = {"scenario", "measured", "is_legal"}
        row: JsonObject = {"id": self.id, "source": self.source, "scenario": scenario}
        row |= self.model_dump(mode="json", exclude_defaults=True, exclude=derived)
        return row if self.crashed else {**row, "measured": self.measured.model_dump(exclude_defaults=True)}


def parse_run(row: JsonValue, place: str = "", *, published: bool = False) -> Run:
    """Raises InputError that names the field, with `place` ("runs[3].") before it.

    Of an upload, fields that a run does not have are ignored. A `published` row has none, and its plan may
    break a rule of its framework if it crashed.
    """
    data = get_object(row, place.rstrip(".: ") or "run")
    crashed, measured = data.get("crashed", False), Measured()
    if not isinstance(crashed, bool):
        raise InputError(f"{place}crashed", crashed, "allowed: true or false")
    stated, is_legal = get_object(data.get("scenario"), f"{place}scenario"), True
    try:
        try:
            scenario = parse_scenario(stated)
        except InputError:
            if not (published and crashed):
                raise
            scenario, is_legal = parse_scenario(stated, check_rules=False), False
    except InputError as error:
        raise error.at(f"{place}scenario.{error.path}") from error
    if not crashed:
        inside, figures = f"{place}measured.", get_object(data.get("measured"), f"{place}measured")
        if not published:
            known = Measured.model_fields
            figures = {k: value for k, value in figures.items() if k in known and value is not None}
            if isinstance(constants := figures.get("constants"), dict):
                figures["constants"] = {k: v for k, v in constants.items() if k not in RETIRED_CONSTANTS}
        measured = build(Measured, figures, inside)
        refuse_unknown(measured.terms_s, (*STEP_TERMS, PIPELINE), f"{inside}terms_s.")
        refuse_unknown(measured.constants, [d.name for d in constant_priors()], f"{inside}constants.")
        if measured.step_time_s is None and measured.peak_memory_gib is None and not measured.constants:
            raise InputError(f"{inside}step_time_s", None, "a step time or a peak_memory_gib is needed")
    if scenario.plan is None and not measured.constants:
        raise InputError(f"{place}scenario.plan", None, "the plan that was run is needed")
    id, source = data.get("id"), data.get("source")
    if isinstance(source, dict):  # published measurements had an object with a key here
        source = source.get("key")
    parsed = {
        "id": "" if id is None else str(id)[:200],
        "source": source[:40] if isinstance(source, str) and source else "upload",
        "scenario": scenario,
        "measured": measured,
    }
    if not published:
        own = Run.model_fields.keys() - {"is_legal"}
        data = {name: value for name, value in data.items() if name in own and value is not None}
    try:
        return build(Run, {**data, **parsed, "is_legal": is_legal})
    except InputError as error:
        raise error.at(f"{place}{error.path}") from error


def parse_runs(rows: Sequence[JsonValue], place: str = "runs") -> list[Run]:
    if not rows:
        raise InputError(place, [], "at least one run is needed")
    if len(rows) > MAX_RUNS:
        raise InputError(place, len(rows), f"at most {MAX_RUNS} runs at once")
    return [parse_run(row, f"{place}[{number}].") for number, row in enumerate(rows)]


def to_file(name: str, runs: Sequence[Run]) -> str:
    """A calibration file, which `parse_file` reads."""
    return json.dumps({"format": FORMAT, "cluster": name, "runs": [run.to_data() for run in runs]}) + "\n"


def parse_file(content: JsonValue, place: str) -> tuple[str, list[Run]]:
    """The cluster's name and its runs."""
    data = get_object(content, place)
    if data.get("format") != FORMAT:
        raise InputError(f"{place}: format", data.get("format"), f"must be {FORMAT!r}")
    rows, name = data.get("runs"), data.get("cluster")
    if not isinstance(rows, list):
        raise InputError(f"{place}: runs", type(rows).__name__, "must be a list of runs")
    return name if isinstance(name, str) else "", parse_runs(rows, f"{place}: runs")
