"""How a run is made: what is not part of the scenario. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from tools.errors import InputError

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
