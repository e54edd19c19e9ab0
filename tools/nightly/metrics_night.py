"""A night from a metrics file: what a training job logs of its steps, where nobody profiles.

One JSON object with `step_times_s`, or a line of JSON with `step_time_s` for each step. Beside them may stand
`mfu`, `peak_memory_bytes` (one, or one a rank), `breakdown_s` (parts that add up to the step), `rank_times_s`
(each rank's own work in a step), `warmup` (leading steps to leave out) and what `job.yaml` says: `versions`,
`nodes`, `data`, `plan`. The reference trainer's result.json is such a file. Other names are left alone.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tools.errors import InputError
from tools.nightly.contract import as_run, contract_of
from tools.nightly.night import Night, Surroundings
from tools.nightly.profile_night import error_ratio, mfu_of, slow_ranks, spread, with_plan
from tools.nightly.surroundings import PARTS, parse_surroundings, read_surroundings
from tools.scenario import parse_scenario

MOST_BYTES = 64 << 20
STEP, STEPS = "step_time_s", "step_times_s"
LEAST, MOST = 1e-12, 1e18
"""Of what must be positive, and of any number: beyond them ratios become infinite."""
WARM_UP_RATIO = 1.5
"""A leading step this much longer than the median of the later ones is warm-up, as in tools.trace.steps."""


def read_metrics_night(described: Mapping[str, Any], path: Path) -> Night:
    """Raises InputError that names what is wrong in the file."""
    content = _read(path)
    given = _parse(content, path)
    around = _surroundings(given, path)
    scenario = parse_scenario(as_run(described, around.plan), need_plan=False)
    times_s = _steady(_numbers(given[STEPS], STEPS), given.get("warmup"))
    step_s = float(np.mean(times_s))
    ranks_s = given.get("rank_times_s")
    own_s = {} if ranks_s is None else dict(enumerate(_numbers(ranks_s, "rank_times_s")))
    return Night(
        key=hashlib.sha256(content).hexdigest()[:32],
        at=path.stat().st_mtime,
        contract=contract_of(scenario),
        num_devices=scenario.cluster.num_devices,
        num_steps=len(times_s),
        step_time_s=step_s,
        step_error_ratio=error_ratio(times_s),
        mfu=_mfu(given) or mfu_of(scenario, step_s),
        terms_s=_terms(given),
        rank_spread_ratio=spread(list(own_s.values()), step_s),
        peak_memory_bytes=_peak(given),
        slow_ranks=slow_ranks(own_s, around.nodes, scenario.cluster.devices_per_node) if own_s else [],
        surroundings=with_plan(around, scenario),
        source=path.name,
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError("metrics", str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise InputError("metrics", str(path), f"must be at most {MOST_BYTES >> 20} MiB")
    return content


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    """The lines of a log become one object: what does not change from step to step is the last one's."""
    try:
        records = [json.loads(content)]
    except (ValueError, RecursionError):
        records = [
            _line(line, number, path) for number, line in enumerate(content.splitlines(), 1) if line.strip()
        ]
    if not records or not all(isinstance(one, dict) for one in records):
        raise InputError("metrics", str(path), f"must hold a JSON object, or one a line with {STEP}")
    steps = [one[STEP] for one in records if STEP in one]
    merged = {name: value for one in records for name, value in one.items()}
    if STEPS not in merged and not steps:
        raise InputError("metrics", str(path), f"must hold {STEPS}, or lines with {STEP}")
    return {STEPS: steps, **merged}


def _line(line: bytes, number: int, path: Path) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path.name} line {number}", line[:60].decode(errors="replace"), f"{error}"
        ) from None


def _surroundings(given: Mapping[str, Any], path: Path) -> Surroundings:
    """The file's own words before those of a job.yaml beside it; of a result.json the fingerprint's too."""
    beside = read_surroundings(path.parent)
    stated = {name: given[name] for name in PARTS if name in given}
    fingerprint = given.get("fingerprint")
    if isinstance(fingerprint, dict):
        told = fingerprint.get("versions")
        versions = {"stack": ", ".join(map(str, told))} if isinstance(told, list) else {}
        stated = {"versions": versions, "data": fingerprint.get("data"), **stated}
    own = parse_surroundings(stated)
    return Surroundings(
        versions={**beside.versions, **own.versions},
        plan={**beside.plan, **own.plan},
        nodes=own.nodes or beside.nodes,
        data=own.data or beside.data,
    )


def _steady(times_s: list[float], warmup: object) -> list[float]:
    if isinstance(warmup, int) and not isinstance(warmup, bool) and 0 <= warmup < len(times_s):
        return times_s[warmup:]
    leading = 0
    while len(times_s) - leading > 2:
        if times_s[leading] <= WARM_UP_RATIO * float(np.median(times_s[leading + 1 :])):
            break
        leading += 1
    return times_s[leading:]


def _numbers(given: object, field: str) -> list[float]:
    if not isinstance(given, list) or not given:
        raise InputError(field, given, "must be a list of positive numbers")
    for one in given:
        if not _is_number(one) or one < LEAST:
            raise InputError(field, one, f"must be positive numbers up to {MOST:.0e}")
    return [float(one) for one in given]


def _number(given: Mapping[str, Any], field: str) -> float | None:
    value = given.get(field)
    if value is None:
        return None
    if not _is_number(value) or value < LEAST:
        raise InputError(field, value, f"must be a positive number up to {MOST:.0e}")
    return float(value)


def _mfu(given: Mapping[str, Any]) -> float | None:
    """Some log it in percent."""
    mfu = _number(given, "mfu")
    if mfu is not None and mfu > 1:
        raise InputError("mfu", mfu, "must be a ratio between 0 and 1")
    return mfu


def _is_number(value: object) -> bool:
    """Not NaN, and not so large that the sum of several is infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST


def _terms(given: Mapping[str, Any]) -> dict[str, float]:
    terms = given.get("breakdown_s") or {}
    if not isinstance(terms, dict) or not all(_is_number(value) for value in terms.values()):
        raise InputError("breakdown_s", terms, "must be parts of the step with seconds each")
    return {str(name): float(value) for name, value in terms.items()}


def _peak(given: Mapping[str, Any]) -> float | None:
    name = "peak_memory_bytes"
    peak = given.get(name)
    return max(_numbers(peak, name)) if isinstance(peak, list) else _number(given, name)
