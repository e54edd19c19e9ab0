"""One night of one workload as a record: plain data that is kept for months and compared with later ones."""

from typing import Any

import msgspec

from tools.errors import DataError

FORMAT = 1


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose own work took longer than that of the middle rank."""

    rank: int
    node: str | None = None
    ratio: float
    """Its own work over the middle rank's, minus 1."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What may explain a change. Empty or None: not recorded, which is never taken for a change."""

    versions: dict[str, str] = {}
    plan: dict[str, Any] = {}
    nodes: list[str] = []
    data: str | None = None


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds, all sizes in bytes, all ratios plain."""

    format: int = FORMAT
    key: str
    """Which profile or file was measured: the same one again is the same night."""
    at: float
    """Seconds since 1970."""
    contract: str = ""
    """Nights are comparable only where it is equal: model, training and number of devices, as a digest."""
    num_devices: int = 1
    num_steps: int = 0
    step_time_s: float
    step_error_ratio: float | None = None
    """Standard error of `step_time_s` by the scatter of that night's own steps, over it."""
    mfu: float | None = None
    terms_s: dict[str, float] = {}
    """Parts of the step that add up to it, where a profile tells them."""
    rank_spread_ratio: float | None = None
    """How much longer the slowest rank's own work takes than the middle one's, over the step."""
    peak_memory_bytes: float | None = None
    slow_ranks: list[SlowRank] = []
    surroundings: Surroundings = Surroundings()
    source: str = ""
    notes: list[str] = []


def night_to_data(night: Night) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(night)
    return data


def night_from_data(data: dict[str, Any]) -> Night:
    """A kept record that is not one is ours to explain, not the user's."""
    try:
        return msgspec.convert(data, Night)
    except msgspec.ValidationError as error:
        raise DataError(f"a kept night cannot be read: {error}; remove it from the table nights") from None
