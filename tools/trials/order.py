"""What a trial is asked to do, what it tells while it runs, and what comes of it, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Status = Literal["measured", "failed", "cancelled"]


@dataclass(frozen=True)
class TrialOrder:
    """One plan to be measured. The same key is the same trial, whoever asks and how often."""

    key: str
    scenario: Mapping[str, Any]
    """Model, cluster, training; the plan stands beside it."""
    plan: Mapping[str, Any]
    device_hours: float
    """The most that it may take, repeats included."""
    against_s: float | None = None
    """The step time to be told apart from; None for the first measurement."""
    template: str | None = None
    """The launch template; None is the installation's."""


class Watch(Protocol):
    """Whoever waits for a trial."""

    def tell(self, phase: str, **content: object) -> None: ...

    def must_cancel(self) -> bool:
        """True ends the job. Whoever must let go of it, and leave it running, raises instead."""
        ...
