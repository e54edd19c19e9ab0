"""Settings of a run, and what it leaves: `result.json`, `progress.jsonl`, `failures`. Needs no torch.

`result.json` is written atomically.
"""

import json
import os
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.errors import InputError
from tools.scenario import Plan, Scenario

OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class RunSettings:
    """`warmup` steps are left out of the times; `profile_steps` come after them and disturb nothing."""

    out: Path
    steps: int = 10
    warmup: int = 3
    profile_steps: int = 0
    seed: int = 0
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("profile_steps", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(
                    f"--{name.replace('_', '-')}", getattr(self, name), f"must be at least {least}"
                )
        if self.optimizer not in OPTIMIZERS:
            raise InputError("--optimizer", self.optimizer, f"allowed: {', '.join(OPTIMIZERS)}")

    def phase(self, step: int) -> str:
        if step < self.warmup:
            return "warmup"
        return "measure" if step < self.warmup + self.steps else "profile"

    @property
    def total_steps(self) -> int:
        """With one more before the profiled ones, in which the profiler starts up."""
        return self.warmup + self.steps + (self.profile_steps + 1 if self.profile_steps else 0)


RESULT, PROGRESS, FAILURES, TRACES = "result.json", "progress.jsonl", "failures", "traces"
FORMAT = 1
DATA = "tokens 5 * previous + 0..2 modulo vocabulary"

JsonObject = dict[str, Any]


@dataclass
class Measurements:
    """Of all ranks; every rank has the same."""

    step_times_s: list[float] = field(default_factory=list)
    """Of every step, the slowest rank's."""
    losses: list[float] = field(default_factory=list)


def result(
    scenario: Scenario,
    plan: Plan,
    settings: RunSettings,
    measured: Measurements,
    ranks: Sequence[JsonObject],
    memory: Sequence[JsonObject],
) -> JsonObject:
    """The content of result.json; `ranks` and `memory` have one entry per rank."""
    first, last = settings.warmup, settings.warmup + settings.steps
    return {
        "format": FORMAT,
        "scenario": scenario.model_dump(mode="json") | {"plan": plan.model_dump(mode="json")},
        "plan": plan.model_dump(mode="json"),
        "world_size": len(ranks),
        "nodes": sorted({rank["host"] for rank in ranks}),
        "seed": settings.seed,
        "warmup_times_s": measured.step_times_s[:first],
        "step_times_s": measured.step_times_s[first:last],
        "losses": measured.losses[:last],
        "profiled_steps": settings.profile_steps,
        "peak_memory_bytes": [rank["peak_bytes"] for rank in memory],
        "before_model_memory_bytes": [rank["before_model_bytes"] for rank in memory],
        "memory_method": memory[0]["method"],
        "ranks": list(ranks),
        "fingerprint": fingerprint(scenario, settings, ranks),
    }


def fingerprint(scenario: Scenario, settings: RunSettings, ranks: Sequence[JsonObject]) -> JsonObject:
    """Two runs are comparable only if every entry is equal."""
    training = scenario.training
    hosts = [rank["host"] for rank in ranks]
    return {
        "model": scenario.model.model_dump(mode="json", exclude={"name"}),
        "data": DATA,
        "seed": settings.seed,
        "global_batch_size": training.global_batch_size,
        "seq_len": training.seq_len,
        "precision": training.precision,
        "flash_attention": training.flash_attention,
        "optimizer": settings.optimizer,
        "versions": sorted({f"{r['backend']} torch {r['torch']} python {r['python']}" for r in ranks}),
        "devices": sorted({rank["device"] for rank in ranks}),
        "nodes": {host: hosts.count(host) for host in sorted(set(hosts))},
    }


def write_result(folder: Path, content: JsonObject) -> None:
    _write_whole(folder / RESULT, content)


class Progress:
    """A heartbeat per step: a run that no longer writes has stopped."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / PROGRESS
        self._path.write_text("")

    def add(self, step: int, phase: str, step_s: float, loss: float) -> None:
        line = {"step": step, "phase": phase, "step_s": step_s, "loss": loss, "unix_time_s": time.time()}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def write_failure(folder: Path, error: BaseException, rank: int | None) -> None:
    """The cause of a failure, one file per process, since the launcher's exit status says little. The first
    one is kept: later ones are consequences."""
    path = folder / FAILURES / f"{socket.gethostname()}-{os.getpid()}.json"
    if path.exists():
        return
    content = {
        "kind": type(error).__name__,
        "field": error.path if isinstance(error, InputError) else None,
        "message": str(error),
        "rank": rank,
        "host": socket.gethostname(),
        "traceback": "".join(traceback.format_exception(error))[-4000:],
    }
    _write_whole(path, content)


def _write_whole(path: Path, content: JsonObject) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
