"""Step times and peaks from what training programs print or export: Megatron-LM, torchtitan and nanotron log
lines, CSV exports of Weights & Biases and TensorBoard.
"""

import csv
import io
import re
import statistics
from collections.abc import Iterable, Sequence

from tools.calibrate.runs import Measured, Run
from tools.errors import InputError
from tools.scenario import Scenario

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
