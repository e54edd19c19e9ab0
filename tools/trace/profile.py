"""What the traces of a run say, typed: the result of `asap diagnose` and the measured part of a diagnosis."""

from typing import Literal

from pydantic import Field

from tools.scenario.spec import Result

Bottleneck = Literal["compute", "memory", "communication", "pipeline", "host"]


class ProfileEvidence(Result):
    """A number with the place in the profile that it comes from."""

    kind: Literal["profile", "roofline"]
    ref: str
    value: float
    says: str


class ProfileCause(Result):
    """A second cause whose share comes near the first one's."""

    bottleneck: Bottleneck
    severity: float
    why: str


class ProfileDiagnosis(Result):
    """One cause of lost time, with its weight, its evidence and how far to trust it."""

    bottleneck: Bottleneck
    severity: float
    confidence: float
    summary: str
    shares: dict[Bottleneck, float]
    evidence: list[ProfileEvidence]
    competing_causes: list[ProfileCause]
    next_to_profile: list[str]
    step_time_s: float | None = None


class BreakdownUs(Result):
    """Device time in microseconds; compute + exposed communication + memory + idle = total."""

    compute_us: float
    communication_us: float
    exposed_communication_us: float
    memory_us: float
    idle_us: float
    total_us: float
    idle_host_us: float
    idle_waiting_us: float
    idle_unknown_us: float
    overlap_ratio: float


class UnreadableFile(Result):
    file: str
    reason: str


class Straggler(Result):
    """A rank that others wait for."""

    rank: int
    arrives_last_ratio: float
    late_by_us: float
    late_total_us: float
    share_of_lateness: float
    cause: str
    cause_us: dict[str, float]


class CollectiveSummary(Result):
    """All calls of one collective of one size in one group."""

    kind: str
    group: str | None
    group_size: int | None
    ranks_seen: int
    message_bytes: int | None
    count: int
    time_us: float
    transfer_us: float | None
    waiting_us: float | None
    bus_bandwidth_gbytes_per_s: float | None
    link_gbytes_per_s: float | None
    transfer_is_upper_bound: bool


class TopOp(Result):
    name: str
    work_class: str = Field(alias="class")
    count: int
    time_us: float
    share_of_total: float


class Profile(Result):
    """What a recommendation needs of a folder of traces: the measured diagnosis and the totals behind it."""

    step_time_s: float | None
    diagnosis: ProfileDiagnosis
    total: BreakdownUs
    ranks: int
    unreadable: list[UnreadableFile]
    stragglers: list[Straggler]
    collectives: list[CollectiveSummary]
    top_ops: list[TopOp]
