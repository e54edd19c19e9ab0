"""The API's requests and responses.

Written by `make client`: edit scripts/make_client.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from asap_client.core import JsonObject, Record

if TYPE_CHECKING:
    from typing import NotRequired  # Python 3.10 has none


class Advice(TypedDict):
    """A playbook that applies but changes no field of the plan."""

    id: str
    title: str
    do: str
    why: str
    effect: str
    risks: list[str]
    sources: list[Source]


class AgainstCreate(TypedDict):
    """A job with its plan, and the measured run it is compared with."""

    scenario: StatedScenario
    against: NotRequired[str]
    """The id of a published run, or 'near'."""
    measured_step_s: NotRequired[float | None]
    """Of the job; absent: predicted."""


class Answered(TypedDict):
    """An answer, who wrote it, and the tools it rests on."""

    question: str
    answer: str
    by: str
    tools: NotRequired[list[str]]
    trail: NotRequired[list[ToolUse]]
    incidents: NotRequired[list[Incident]]


class AssumedSetting(TypedDict):
    """A setting that the scenario leaves open, what it is taken for, and who says so."""

    name: str
    value: Any
    source: str


class AuditPage(TypedDict):
    items: list[AuditPublic]
    next_cursor: str | None


class AuditPublic(TypedDict):
    """Who did what, to what, and by which request."""

    id: str
    at: str
    who: str
    action: str
    """Session.decide, session.cancel, key.add, ..."""
    target: str
    request_id: str | None
    details: JsonObject


class BaselinePlan(TypedDict):
    """What gains are counted from, and whether it runs today or is the framework's default."""

    plan: Plan
    name: str


class Basis(TypedDict):
    """Ratios are less one."""

    half_width: float
    cause: Literal["base", "experts", "host", "exchange", "network", "memory", "short", "distance", "novelty"]
    cause_share: float
    nearest_run: str
    differences: list[str]
    nearest_error: float
    correction: float
    calibrated_by: NotRequired[str]
    own_correction: NotRequired[float]
    runs: NotRequired[list[RunCitation]]
    crash_alike: NotRequired[str]
    findings: NotRequired[list[ClusterFinding]]
    never_measured: str
    measurement: Literal["host", "network", "exchange", "step"]
    half_width_after: float
    nearest_summary: str
    uncertainty_summary: str
    """Why the interval is wide or the stack unknown, and what would narrow it; else empty."""


Blackout = TypedDict(
    "Blackout",
    {
        "start": "NotRequired[str | None]",
        "end": "NotRequired[str | None]",
        "days": "NotRequired[list[Literal['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun']]]",
        "from": "NotRequired[str | None]",
        "to": "NotRequired[str | None]",
        "reason": "NotRequired[str | None]",
    },
)


class BreakdownUs(TypedDict):
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
    overlap_ratio: float | None


class Budget(TypedDict):
    """What a session may spend; never more than the installation allows."""

    session_s: NotRequired[float | None]
    """Seconds."""
    tokens: NotRequired[int | None]
    """Tokens of the language model."""
    cost: NotRequired[float | None]
    """Money for the language model."""
    device_hours: NotRequired[float | None]
    """Ranks times hours of its trials."""
    trials: NotRequired[int | None]
    """Plans it may measure, the baseline among them."""


class CalibrationUse(TypedDict):
    """Which runs of the cluster the predictions were calibrated by, and what they would be without."""

    cluster: str
    version: int
    runs: int
    says: str
    baseline_without_s: float | None
    proposal_without_s: float
    findings: NotRequired[list[ClusterFinding]]


class CandidateCluster(TypedDict):
    """A cluster that could be had."""

    devices: str
    """Such as "64 x H100" or "8 p5.48xlarge"."""
    name: NotRequired[str | None]
    price_per_device_hour: NotRequired[float | None]
    framework: NotRequired[str | None]
    precision: NotRequired[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None]
    fabric: NotRequired[Literal["ib", "roce", "efa", "tcp"] | None]


class CaseCreate(TypedDict):
    """A case to store; its fields are those of the shipped cases."""

    id: str


class CaseReference(TypedDict):
    """A past case near to this one; a refuted one is a warning."""

    id: str
    title: str
    status: Literal["confirmed", "hypothesis", "refuted"]
    warning: bool
    lesson: str
    measured: dict[str, Any] | None
    sources: list[Source]


class CauseFinding(TypedDict):
    """One cause, what it costs in the mean step of a rank, and what would remove it."""

    cause: Literal[
        "compute",
        "recomputation",
        "memory_bound_kernels",
        "exposed_tp",
        "exposed_cp",
        "exposed_ep",
        "exposed_dp",
        "exposed_pp",
        "slow_link",
        "late_host",
        "slow_device",
        "small_messages",
        "bubble",
        "imbalance",
        "data_loading",
        "cpu_binding",
        "allocator_retries",
        "synchronisation",
        "recompilation",
        "checkpointing",
        "host_pauses",
        "trace_mismatch",
    ]
    seconds: float
    seconds_low: NotRequired[float | None]
    seconds_high: NotRequired[float | None]
    share: float
    ranks: list[int]
    place: NotRequired[str]
    measure: NotRequired[str]
    evidence: list[TraceEvidence]
    lever: str
    summary: str


class CauseTimes(TypedDict):
    """Time beyond the other ranks' before the collectives that a straggler was last at."""

    loader_us: float
    host_us: float
    compute_us: float


Change = TypedDict(
    "Change", {"field": "str", "from": "int | str | bool | None", "to": "int | str | bool | None"}
)


class CheckPublic(TypedDict):
    ok: bool
    detail: str


class CheckedRun(TypedDict):
    """A run beside its prediction without any run, and with all others but itself."""

    number: int
    id: str
    measured_s: float
    before_s: float
    after_s: float


class Checkpoint(TypedDict):
    """What becomes of today's checkpoint under a proposal."""

    loads: Literal["as it is", "resharded", "converted", "unknown"]
    command: NotRequired[str]
    moved_gib: float
    source: str


class ClusterFinding(TypedDict):
    """Something odd about a cluster's runs."""

    kind: Literal["far off", "contradiction"]
    message: str
    measure: str


class ClusterList(TypedDict):
    items: list[ClusterPublic]
    next_cursor: NotRequired[str | None]


class ClusterPublic(TypedDict):
    """What the runs of a cluster say."""

    name: str
    version: int
    """0: all of its runs were taken back."""
    updated_at: NotRequired[str | None]
    says: str
    """12 runs, ±4.1%."""
    runs: int
    error_before: float
    """Mean error of the general model on these runs."""
    error_after: float
    """Mean error of each run as the others predict it."""
    memory_factor: NotRequired[float]
    findings: NotRequired[list[ClusterFinding]]
    """What is odd about the runs, and what to measure; the gravest first."""
    checked: NotRequired[list[CheckedRun]]
    left_out: NotRequired[list[LeftOut]]
    constants: NotRequired[list[MovedConstant]]
    """This cluster's own constants beside the usual ones."""


class CollectiveSummary(TypedDict):
    """All collectives of one kind and size in one group; times are means over the ranks."""

    kind: str
    group: str
    group_size: int | None
    ranks_seen: int
    message_bytes: int | None
    count: int
    time_us: float
    transfer_us: float
    waiting_us: float | None
    bus_bandwidth_gbytes_per_s: float | None
    link_gbytes_per_s: float | None
    transfer_is_upper_bound: bool


class CompetingCause(TypedDict):
    """A bottleneck that deserves a look beside the first one."""

    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    source: Literal["model", "profile"]
    says: str


class CompleteCreate(TypedDict):
    """Completes an upload."""

    files: dict[str, str]
    """SHA-256 of every file, in hexadecimal."""


class ComputeSplit(TypedDict):
    """Seconds of the mean step in matrix products and attention; None for what the trace does not
    show.
    """

    ideal_s: float | None
    inefficiency_s: float | None
    attention_s: float
    other_s: float


class Decision(TypedDict):
    """Approves or rejects a proposal by its rank, edits fields of one, or submits a plan of one's own."""

    action: Literal["approve", "reject", "edit", "submit"]
    id: NotRequired[str | None]
    """Your own; the same decision sent twice is one decision."""
    proposal: NotRequired[int]
    """The rank of the proposal that is meant."""
    plan: NotRequired[JsonObject | None]
    """With edit, the fields that change; with submit, those of your own plan."""
    by: NotRequired[str | None]
    comment: NotRequired[str | None]


class Delivery(TypedDict):
    """How the delivery to one recipient ended."""

    kind: str
    to: str
    ok: bool
    answer: str
    at: float


class Diagnosis(TypedDict):
    """What limits a plan, with the numbers, and whether sharding can help."""

    cause: NotRequired[
        Literal[
            "compute",
            "recomputation",
            "memory_bound_kernels",
            "exposed_tp",
            "exposed_cp",
            "exposed_ep",
            "exposed_dp",
            "exposed_pp",
            "slow_link",
            "late_host",
            "slow_device",
            "small_messages",
            "bubble",
            "imbalance",
            "data_loading",
            "cpu_binding",
            "allocator_retries",
            "synchronisation",
            "recompilation",
            "checkpointing",
            "host_pauses",
            "trace_mismatch",
        ]
        | None
    ]
    recalibrated: NotRequired[Recalibration | None]
    differing_terms: NotRequired[list[str]]
    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    share: float
    shares: dict[str, float]
    evidence: list[Evidence]
    lever: NotRequired[str | None]
    profile: NotRequired[MeasuredDiagnosis | None]
    competing: NotRequired[list[CompetingCause]]
    weighed: NotRequired[str | None]


class Difference(TypedDict):
    """A field that is not the same in a run and in the scenario that it is compared with."""

    field: str
    theirs: str
    yours: str


class Evidence(TypedDict):
    kind: Literal["profile", "roofline", "model", "knowledge", "trial"]
    ref: str
    says: str


class ExplainCreate(TypedDict):
    """A workload, and the plan in question."""

    scenario: StatedScenario
    plan: JsonObject
    """The fields that differ from the best plan; dp follows by itself."""


class ExplainedPlan(TypedDict):
    """What speaks against a plan that somebody asks about, beside the best one."""

    summary: str
    binding: Literal["none", "rule", "memory", "constraint", "time", "preference", "trial"]
    why: str
    step_time_s: NotRequired[float | None]
    step_time_ratio: NotRequired[float | None]
    peak_memory_gib: NotRequired[float | None]
    plan: Plan
    winner: Plan
    """The plan that ASAP proposes first."""


class ExplainedPrediction(TypedDict):
    """The prediction of a single scenario, with what it stands on."""

    id: str | int | float | None
    fits: bool
    fit_probability: float
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s_per_device: float
    model_tflops_per_device: float
    mfu: float
    peak_memory_gib: float
    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    parameters: int
    active_parameters: int
    breakdown_s: dict[str, float]
    memory_gib: dict[str, float]
    run: NotRequired[RunForecast | None]
    basis: Basis
    assumed: list[AssumedSetting]


class Fact(TypedDict):
    """Something known about the job, and from where."""

    name: str
    value: Any
    unit: NotRequired[str | None]
    source: Literal["catalogue", "notes", "profile", "trial", "person", "scenario", "runs"]
    reference: NotRequired[str]


FieldLimit = TypedDict(
    "FieldLimit",
    {
        "not": "NotRequired[int | str | bool | list[int | str | bool] | None]",
        "min": "NotRequired[int | None]",
        "max": "NotRequired[int | None]",
    },
)


class Fork(TypedDict):
    """Where another session goes on from, and what is different from there on."""

    step: NotRequired[int | None]
    """Number of an event (`seq`): the run of the agent that it belongs to is repeated, or an earlier
    one if what changes is read there; absent: as late as the changes allow.
    """
    notes: NotRequired[str | None]
    """In place of the notes; an empty text removes them."""
    constraints: NotRequired[dict[str, Any] | None]
    """In place of the constraints."""
    answers: NotRequired[dict[str, dict[str, Any]] | None]
    """Your own answers to questions of the agents: find_cause, propose_plans, revise_worklist,
    explain; checked as a model's are.
    """
    decision: NotRequired[Decision | None]
    """About the proposals, in place of the one that was made."""


class ForkedFrom(TypedDict):
    """The step of another session that this one goes on from."""

    session: str
    step: int
    """Number of the event that the repeated run began with."""
    node: str
    """The agent that runs again."""
    attempt: int
    turn: int
    """The graph's own number of that run."""
    changed: Fork
    """What was stated otherwise."""


class Gain(TypedDict):
    """Over today's plan: measured where both were, else predicted."""

    speedup: float
    low: float
    high: float
    predicted: float | None


class Headline(TypedDict):
    """The verdict with the figures that may stand beside it."""

    stance: Literal["foreign", "unfit", "start", "switch", "keep"]
    text: str
    decision: NotRequired[Literal["approved", "rejected"] | None]
    rank: int | None
    limit: Limit
    gain: NotRequired[Gain | None]
    is_measured: NotRequired[bool]
    today_s: NotRequired[float | None]
    step_s: float
    mfu: float
    memory_gib: float
    fit_probability: float
    split: NotRequired[dict[str, float]]


class HealthPublic(TypedDict):
    status: str
    version: str


class Hypothesis(TypedDict):
    """A cause of the closed list, what it costs, and where that stands."""

    cause: Literal[
        "compute",
        "recomputation",
        "memory_bound_kernels",
        "exposed_tp",
        "exposed_cp",
        "exposed_ep",
        "exposed_dp",
        "exposed_pp",
        "slow_link",
        "late_host",
        "slow_device",
        "small_messages",
        "bubble",
        "imbalance",
        "data_loading",
        "cpu_binding",
        "allocator_retries",
        "synchronisation",
        "recompilation",
        "checkpointing",
        "host_pauses",
        "trace_mismatch",
        "out_of_memory",
    ]
    source: Literal["model", "profile", "trial"]
    seconds: NotRequired[float | None]
    share: NotRequired[float | None]
    says: str
    predicts: NotRequired[str]
    status: NotRequired[Literal["open", "supported", "refuted"]]
    evidence: NotRequired[list[Evidence]]
    ranks: NotRequired[list[int]]
    by: NotRequired[str]


class Incident(TypedDict):
    message: str
    questions: NotRequired[list[str]]
    tool: NotRequired[str | None]
    fell_back: NotRequired[bool]
    error: NotRequired[str | None]
    place: NotRequired[str | None]
    node: str
    kind: str


class LeftOut(TypedDict):
    """A run that nothing was learned from, and why."""

    number: int
    id: str
    why: str


class Limit(TypedDict):
    """The loss that limits a plan, and which proposal takes most of it away."""

    key: str
    name: str
    seconds: float
    share: float
    rank: NotRequired[int | None]
    source: NotRequired[Literal["model", "profile"]]


class LoraSpec(TypedDict):
    """Low-rank adapters on frozen base weights, which QLoRA keeps in 4 or 8 bits (`weight_bits`)."""

    rank: int
    targets: NotRequired[list[Literal["attention", "mlp"]]]
    weight_bits: NotRequired[Literal[4, 8, 16]]


class MarkCreate(TypedDict):
    """Another status for a case, and why; the old one stays in its history."""

    status: Literal["confirmed", "hypothesis", "refuted"]
    reason: str
    measured: NotRequired[JsonObject | None]
    """Replaces what the case stated."""


class MeasuredCoefficient(TypedDict):
    """One constant, within its bounds."""

    name: str
    value: float
    default: float
    source: str
    is_bounded: bool


class MeasuredDiagnosis(TypedDict):
    """What the traces of today's plan show."""

    cause: NotRequired[
        Literal[
            "compute",
            "recomputation",
            "memory_bound_kernels",
            "exposed_tp",
            "exposed_cp",
            "exposed_ep",
            "exposed_dp",
            "exposed_pp",
            "slow_link",
            "late_host",
            "slow_device",
            "small_messages",
            "bubble",
            "imbalance",
            "data_loading",
            "cpu_binding",
            "allocator_retries",
            "synchronisation",
            "recompilation",
            "checkpointing",
            "host_pauses",
            "trace_mismatch",
        ]
        | None
    ]
    lever: NotRequired[str | None]
    causes: NotRequired[list[CauseFinding]]
    compute_split: NotRequired[ComputeSplit | None]
    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    severity: float
    confidence: float
    summary: str
    shares: dict[str, float]
    evidence: list[TraceEvidence]
    competing_causes: list[ProfileCause]
    next_to_profile: list[str]
    step_time_s: float | None


class MeasuredPlan(TypedDict):
    """What a trial measured for a proposal."""

    step_time_s: float
    interval_s: list[float]
    noise: float
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    peak_memory_gib: float | None
    predicted_step_time_s: float
    trial: str


class MovedConstant(TypedDict):
    """A constant that the runs moved by a hundredth at least."""

    name: str
    before: float
    after: float
    meaning: str


class NoteQuestion(TypedDict):
    """What a person must answer before a part of the notes may count."""

    field: str
    text: str
    quotes: NotRequired[list[str]]


class Notes(TypedDict):
    accepted: list[Statement]
    refused: list[Statement]
    says: str | None
    questions: NotRequired[list[NoteQuestion]]
    facts: NotRequired[list[Fact]]
    without: NotRequired[list[PlanSummary]]


class NumberFault(TypedDict):
    """A number that does not hold, and where it is stated."""

    place: str
    says: str


class NumericsOption(TypedDict):
    """A change that would raise throughput but changes the training itself: named, never proposed."""

    lever: str
    throughput_ratio: float
    fits: bool
    says: str


class PairedRatio(TypedDict):
    """What a plan takes over what another took beside it, with its 95% interval: load on the cluster
    slows
    """

    against: str
    ratio: float
    low: float
    high: float
    pairs: int


class ParetoPoint(TypedDict):
    step_time_s: float
    peak_memory_gib: float
    plan: Plan


class PersonQuestion(TypedDict):
    """What only a person can answer; nothing is changed before."""

    field: str
    text: str
    quotes: NotRequired[list[str]]
    by: NotRequired[str]


class Place(TypedDict):
    """What a training would take on a cluster, or why it cannot run there."""

    name: str
    device: NotRequired[str | None]
    num_devices: NotRequired[int | None]
    framework: NotRequired[str | None]
    plan: NotRequired[Plan | None]
    prediction: NotRequired[Prediction | None]
    is_on_front: NotRequired[bool]
    """No other is both faster and cheaper (in device-hours unless all have prices)."""
    reason: NotRequired[str | None]
    """Why nothing runs there."""


class Plan(TypedDict):
    """A sharding configuration; `recompute` None lets the cost model choose by memory."""

    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    dp: int
    dp_shard: int
    zero_stage: int
    micro_batch_size: int
    sequence_parallel: bool
    recompute: Literal["none", "selective", "full"] | None
    schedule: Literal["1f1b", "interleaved", "zero_bubble", "gpipe"]
    recompute_layers: NotRequired[int | None]
    recompute_modules: NotRequired[
        list[Literal["core_attn", "layernorm", "mlp", "shared_experts", "moe", "moe_act", "mla_up_proj"]]
        | None
    ]
    reshard_after_forward: NotRequired[bool | None]


class PlanPart(TypedDict):
    """Some fields of a plan."""

    tp: NotRequired[int | None]
    pp: NotRequired[int | None]
    vpp: NotRequired[int | None]
    cp: NotRequired[int | None]
    ep: NotRequired[int | None]
    etp: NotRequired[int | None]
    dp: NotRequired[int | None]
    dp_shard: NotRequired[int | None]
    zero_stage: NotRequired[int | None]
    micro_batch_size: NotRequired[int | None]
    sequence_parallel: NotRequired[bool | None]
    recompute: NotRequired[Literal["none", "selective", "full"] | None]
    schedule: NotRequired[Literal["1f1b", "interleaved", "zero_bubble", "gpipe"] | None]
    recompute_layers: NotRequired[int | None]
    recompute_modules: NotRequired[
        list[Literal["core_attn", "layernorm", "mlp", "shared_experts", "moe", "moe_act", "mla_up_proj"]]
        | None
    ]
    reshard_after_forward: NotRequired[bool | None]


class PlanSummary(TypedDict):
    """A plan in one line, to stand beside another answer."""

    summary: str
    step_time_s: float
    speedup: float | None


class PrecisionScope(TypedDict):
    """Parts that are kept in another precision than the run's."""

    bf16: NotRequired[
        list[
            Literal[
                "qkv",
                "proj",
                "core_attn",
                "mlp",
                "experts",
                "shared_experts",
                "router",
                "latent",
                "mamba_in",
                "mamba_out",
                "lm_head",
                "mtp",
                "dispatch",
            ]
        ]
    ]
    mxfp8: NotRequired[
        list[
            Literal[
                "qkv",
                "proj",
                "core_attn",
                "mlp",
                "experts",
                "shared_experts",
                "router",
                "latent",
                "mamba_in",
                "mamba_out",
                "lm_head",
                "mtp",
                "dispatch",
            ]
        ]
    ]
    bf16_last_layers: NotRequired[int]


class Prediction(TypedDict):
    """What a plan is predicted to take."""

    id: str | int | float | None
    fits: bool
    fit_probability: float
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s_per_device: float
    model_tflops_per_device: float
    mfu: float
    peak_memory_gib: float
    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    parameters: int
    active_parameters: int
    breakdown_s: dict[str, float]
    memory_gib: dict[str, float]
    run: NotRequired[RunForecast | None]


class PredictionComparison(TypedDict):
    """The measured step beside the predicted one, before and after calibration by the trace."""

    per: Literal["step", "trace"]
    num_steps: int
    step_time: TermComparison
    terms: list[TermComparison]
    waiting_s: float
    coefficients: list[MeasuredCoefficient]
    notes: list[str]


class PricedSetting(TypedDict):
    """What one setting, or several that are legal only together, would change if taken from the run."""

    differences: list[Difference]
    ratio: float
    term: str
    memory_gib: float
    fits: bool


class Profile(TypedDict):
    """What a recommendation needs of a folder of traces: the measured diagnosis and the totals behind
    it.
    """

    step_time_s: float | None
    diagnosis: ProfileDiagnosis
    total: BreakdownUs
    ranks: int
    unreadable: list[UnreadableFile]
    stragglers: list[Straggler]
    collectives: list[CollectiveSummary]
    top_ops: list[TopOp]
    facts: NotRequired[TraceFacts | None]
    match: NotRequired[TraceMatch | None]
    comparison: NotRequired[PredictionComparison | None]


class ProfileCause(TypedDict):
    """A second cause whose share comes near the first one's."""

    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    severity: float
    why: str


class ProfileDiagnosis(TypedDict):
    """The main cause of lost time, with its weight, its evidence and how far to trust it."""

    cause: NotRequired[
        Literal[
            "compute",
            "recomputation",
            "memory_bound_kernels",
            "exposed_tp",
            "exposed_cp",
            "exposed_ep",
            "exposed_dp",
            "exposed_pp",
            "slow_link",
            "late_host",
            "slow_device",
            "small_messages",
            "bubble",
            "imbalance",
            "data_loading",
            "cpu_binding",
            "allocator_retries",
            "synchronisation",
            "recompilation",
            "checkpointing",
            "host_pauses",
            "trace_mismatch",
        ]
        | None
    ]
    lever: NotRequired[str | None]
    causes: NotRequired[list[CauseFinding]]
    compute_split: NotRequired[ComputeSplit | None]
    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    severity: float
    confidence: float
    summary: str
    shares: dict[str, float]
    evidence: list[TraceEvidence]
    competing_causes: list[ProfileCause]
    next_to_profile: list[str]


class Proposal(TypedDict):
    """A plan that is proposed: its prediction, what changes from today's, and why it has its place."""

    speedup: NotRequired[float | None]
    speedup_low: NotRequired[float | None]
    speedup_high: NotRequired[float | None]
    rank: int
    role: NotRequired[Literal["recommended", "fastest", "alternative"]]
    plan: Plan
    settings: NotRequired[dict[str, bool | str]]
    prediction: Prediction
    changes: NotRequired[list[Change]]
    why: NotRequired[str]
    rationale: NotRequired[str]
    evidence: NotRequired[list[Evidence]]
    risks: NotRequired[list[str]]
    measured: NotRequired[MeasuredPlan | None]
    checkpoint: NotRequired[Checkpoint | None]
    two_runs: NotRequired[TwoRuns | None]
    robustness: NotRequired[Robustness | None]


class ProposalList(TypedDict):
    items: list[Proposal]


class QuestionCreate(TypedDict):
    """A question about a finished session."""

    question: str


class ReadyPublic(TypedDict):
    ready: bool
    checks: dict[str, CheckPublic]
    """Each part that this process needs."""


class Recalibration(TypedDict):
    """The model's step beside the measured one that it was calibrated to."""

    measured_s: float
    model_s: float
    calibrated_s: float
    says: str


class RecipeReference(TypedDict):
    """A plan that was tuned, measured and published for this model."""

    id: str
    title: str
    says: str
    same_device: bool
    proposal: int | None
    sources: list[Source]


class Recipients(TypedDict):
    webhooks: NotRequired[list[str]]
    """Get the report as signed JSON."""
    slack: NotRequired[list[str]]
    """Incoming webhooks of Slack, Mattermost and the like."""
    emails: NotRequired[list[str]]
    when: NotRequired[Literal["always", "alarm"]]
    """Alarm: only with a new regression or a workload that could not be read."""


class Recommendation(TypedDict):
    """What `optimize` returns: the search's result with what limits today's plan."""

    proposals: list[Proposal]
    rejected: list[RejectedPlan]
    searched: Searched
    sensitivity: list[Sensitivity]
    beyond_contract: list[NumericsOption]
    pareto: list[ParetoPoint]
    id: str | int | float | None
    diagnosis: Diagnosis
    baseline: Prediction | None
    questions: NotRequired[list[PersonQuestion]]
    reasoner: str


class Refusal(TypedDict):
    """One thing that was not the same in two runs."""

    entry: str
    baseline: str
    trial: str
    says: str


class RefusalPublic(TypedDict):
    """In the place of a prediction, for a scenario of a batch that is wrong."""

    id: NotRequired[str | int | float | None]
    error: str
    field: str


class RejectedPlan(TypedDict):
    """A plan with what speaks against it."""

    summary: str
    binding: Literal["none", "rule", "memory", "constraint", "time", "preference", "trial"]
    why: str
    step_time_s: NotRequired[float | None]
    step_time_ratio: NotRequired[float | None]
    peak_memory_gib: NotRequired[float | None]
    plan: Plan


class Report(TypedDict):
    """What `asap optimize --json` prints and `GET /v1/sessions/{id}/report` returns."""

    id: str | int | float | None
    scenario: NotRequired[dict[str, Any] | None]
    verdict: str
    headline: NotRequired[Headline | None]
    explanation: NotRequired[str]
    first_step: str
    would_change: str
    authors: NotRequired[dict[str, str]]
    facts: NotRequired[list[Fact]]
    hypotheses: NotRequired[list[Hypothesis]]
    questions: NotRequired[list[PersonQuestion]]
    chosen: NotRequired[int | None]
    diagnosis: Diagnosis
    baseline: Prediction | None
    baseline_plan: BaselinePlan | None
    proposals: list[Proposal]
    rejected: list[RejectedPlan]
    searched: Searched
    sensitivity: list[Sensitivity]
    beyond_contract: list[NumericsOption]
    pareto: list[ParetoPoint]
    considered: list[ScoredPlan]
    advice: list[Advice]
    cases: list[CaseReference]
    recipes: NotRequired[list[RecipeReference]]
    notes: Notes | None
    profile: Profile | None
    decisions: list[Decision]
    trials: list[Trial]
    stopping: Stopping | None
    calibration: dict[str, Any] | None
    calibrated_by: NotRequired[CalibrationUse | None]
    verification: Verification
    incidents: list[Incident]
    route: list[RouteStep]
    usage: Usage
    case: str | None
    reasoner: str


class Robustness(TypedDict):
    """Seconds per step if things are worse than they seem, and the chance to fit a tenth less memory."""

    expected_s: float
    worst_s: float
    half_network_s: float
    slow_node_s: float
    fits_less_memory: float


class RouteStep(TypedDict):
    step: str
    reason: str


class RunCitation(TypedDict):
    """What a run says of its own plan."""

    ref: str
    summary: str
    is_told: bool
    is_crash: bool
    is_doubted: bool


class RunComparison(TypedDict):
    """Speeds are model TFLOP/s per device. Predicted ratios are by the formulas alone."""

    run: str
    title: str
    source: str
    tflops: float
    is_measured: bool
    run_tflops: float
    settings: list[PricedSetting]
    unpriced: list[Difference]
    interaction: float
    predicted_ratio: float
    remainder: float
    unknown: list[str]


class RunForecast(TypedDict):
    """The whole run of a plan: how long it takes and what it costs, in the currency of the price."""

    tokens: int
    steps: int
    days: float
    days_low: float
    """With days_high the 80% interval of the step time."""
    days_high: float
    device_hours: float
    cost: NotRequired[float | None]
    goodput: NotRequired[float | None]
    """Share of the time that is progress, if failures are stated."""
    checkpoint_interval_s: NotRequired[float | None]
    """Work between two checkpoints that loses least."""
    one_percent_device_hours: float
    """What 1% of the step time is worth."""
    one_percent_cost: NotRequired[float | None]


class RunGoal(TypedDict):
    """What a whole run is to reach, what it costs and what interrupts it: predictions then forecast
    it.
    """

    tokens: NotRequired[int]
    """Trained on in the whole run; absent: per billion."""
    price_per_device_hour: NotRequired[float | None]
    device_hours_between_failures: NotRequired[float | None]
    """That stop the job; Llama 3 had one in 50,700 (arXiv 2407.21783)."""
    checkpoint_s: NotRequired[float]
    """Training stands still while one is written."""
    restart_s: NotRequired[float]
    """From a failure to the first step after it."""


class ScheduleCreate(TypedDict):
    """A nightly run: which workloads, when, and whom to tell."""

    workloads: list[WatchedWorkload]
    mode: NotRequired[Literal["advise", "tune"]]
    """Tune also measures plans on the cluster."""
    approval: NotRequired[Literal["none", "person", "policy"]]
    """Person: sessions wait for a decision; policy: trials keep to `policy`."""
    policy: NotRequired[TrialPolicy | None]
    template: NotRequired[str | None]
    """The launch template of trials."""
    budget: NotRequired[Budget | None]
    least_change: NotRequired[float]
    """A smaller change of the step time is not reported."""
    gain: NotRequired[float]
    """Re-optimize if the best plan is predicted to be this much faster."""
    reoptimize: NotRequired[bool]
    recipients: NotRequired[Recipients]
    name: str
    cron: str
    """Five fields, or @daily; times are those of the zone."""
    zone: NotRequired[str]
    missed: NotRequired[Literal["once", "skip"]]
    """A night for which no worker was available: caught up once, or skipped."""
    overlap: NotRequired[Literal["skip", "wait"]]
    """A night whose predecessor still runs: skipped, or run after it."""
    blackouts: NotRequired[list[Blackout]]
    jitter_s: NotRequired[float]
    """Delay each start by up to this many seconds, to spread the load."""


class ScoredPlan(TypedDict):
    """A plan that the search did not find by itself (an agent's, a playbook's, an engineer's), judged."""

    summary: str
    binding: Literal["none", "rule", "memory", "constraint", "time", "preference", "trial"]
    why: str
    step_time_s: NotRequired[float | None]
    step_time_ratio: NotRequired[float | None]
    peak_memory_gib: NotRequired[float | None]
    plan: Plan | dict[str, int | str | bool | None]
    accepted: bool
    proposal: NotRequired[Proposal | None]
    origin: NotRequired[str]
    reason: NotRequired[str]
    by_person: NotRequired[bool]
    support: NotRequired[list[Evidence]]


class Searched(TypedDict):
    """How many plans were decided, how many of them timed one by one, and how long that took; whether
    they
    """

    plans: int
    timed: int
    seconds: float
    space: NotRequired[Literal["practice", "all"]]


Sensitivity = TypedDict(
    "Sensitivity",
    {
        "if": "str",
        "best": "Plan | None",
        "step_time_s": "NotRequired[float | None]",
        "stays": "bool",
        "says": "str",
    },
)


class SessionCreate(TypedDict):
    """The body of `asap optimize`, and how far ASAP may go with it."""

    name: NotRequired[str | None]
    """Your own name for it; pages show it first."""
    labels: NotRequired[dict[str, str]]
    """At most 32, to find it again by."""
    priority: NotRequired[int]
    """The higher ones run first."""
    webhook: NotRequired[str | None]
    """Notified, with a signature, when the session ends or waits for approval; read back without its
    path, which may hold a token.
    """
    mode: NotRequired[Literal["advise", "tune"]]
    """Tune also measures plans on the cluster."""
    approval: NotRequired[Literal["none", "person", "policy"]]
    """Person: the session waits for a decision before anything is launched or closed; policy: trials
    keep to `policy` and the budget.
    """
    policy: NotRequired[TrialPolicy | None]
    """With approval policy: what trials may change."""
    template: NotRequired[str | None]
    """The registered launch template of its trials; else the usual one."""
    budget: NotRequired[Budget | None]
    id: NotRequired[str | int | float | None]
    """Repeated in the answer."""
    model: dict[str, Any]
    """A Hugging Face config.json as it is, or its fields."""
    cluster: StatedCluster
    training: TrainingSpec
    plan: NotRequired[StatedPlan | None]
    """Today's configuration; absent for a cold start."""
    constraints: NotRequired[StatedConstraints | None]
    traces: NotRequired[str | None]
    """`trace:<id>` of an upload; a folder of the server with the scope operator."""
    notes: NotRequired[str | None]
    """An engineer's free text."""
    run: NotRequired[RunGoal | None]
    """Tokens, price and failures of the whole run: forecasts them."""


class SessionFailure(TypedDict):
    """Why a session ended without a result."""

    kind: NotRequired[str]
    message: NotRequired[str]
    field: NotRequired[str | None]


class SessionLinks(TypedDict):
    self: str
    events: str
    report: str
    proposals: str
    cancel: str
    retry: str
    decision: str
    fork: str


class SessionPatch(TypedDict):
    """What people change about a session at any time; what is absent stays."""

    name: NotRequired[str | None]
    """Null or an empty one takes it away."""
    labels: NotRequired[dict[str, str] | None]
    """In place of those it has."""
    remark: NotRequired[str | None]
    """For people; agents read the notes of the request."""


class Source(TypedDict):
    title: str
    where: str


class StatedCluster(TypedDict):
    """The devices a job runs on, as written: the node size may be left to the device."""

    name: NotRequired[str | None]
    device: str
    num_devices: int
    devices_per_node: NotRequired[int | None]
    overrides: NotRequired[dict[str, Any] | None]
    topology: NotRequired[TopologySpec | None]
    fabric: NotRequired[Literal["ib", "roce", "efa", "tcp"] | None]


class StatedConstraints(TypedDict):
    """Per plan field a value, a list of allowed values, or what it may not be; and more."""

    max_memory_fraction: NotRequired[float | None]
    min_fit_probability: NotRequired[float | None]
    keep_checkpoint_layout: NotRequired[bool | None]
    max_changes: NotRequired[int | None]
    space: NotRequired[Literal["practice", "all"] | None]
    avoid: NotRequired[list[PlanPart] | None]
    tp: NotRequired[int | list[int] | FieldLimit | None]
    pp: NotRequired[int | list[int] | FieldLimit | None]
    vpp: NotRequired[int | list[int] | FieldLimit | None]
    cp: NotRequired[int | list[int] | FieldLimit | None]
    ep: NotRequired[int | list[int] | FieldLimit | None]
    etp: NotRequired[int | list[int] | FieldLimit | None]
    dp: NotRequired[int | list[int] | FieldLimit | None]
    dp_shard: NotRequired[int | list[int] | FieldLimit | None]
    zero_stage: NotRequired[int | list[int] | FieldLimit | None]
    micro_batch_size: NotRequired[int | list[int] | FieldLimit | None]
    sequence_parallel: NotRequired[bool | list[bool] | FieldLimit | None]
    recompute: NotRequired[
        Literal["none", "selective", "full"]
        | None
        | list[Literal["none", "selective", "full"] | None]
        | FieldLimit
    ]
    schedule: NotRequired[
        Literal["1f1b", "interleaved", "zero_bubble", "gpipe"]
        | list[Literal["1f1b", "interleaved", "zero_bubble", "gpipe"]]
        | FieldLimit
        | None
    ]


class StatedPlan(TypedDict):
    """A plan as written: null or absent if the source did not say."""

    tp: int
    pp: int
    vpp: NotRequired[int | None]
    cp: int
    ep: NotRequired[int | None]
    etp: NotRequired[int | None]
    dp: int
    dp_shard: NotRequired[int | None]
    zero_stage: int
    micro_batch_size: int
    sequence_parallel: NotRequired[bool | None]
    recompute: NotRequired[Literal["none", "selective", "full"] | None]
    schedule: NotRequired[Literal["1f1b", "interleaved", "zero_bubble", "gpipe"] | None]
    recompute_layers: NotRequired[int | None]
    recompute_modules: NotRequired[
        list[Literal["core_attn", "layernorm", "mlp", "shared_experts", "moe", "moe_act", "mla_up_proj"]]
        | None
    ]
    reshard_after_forward: NotRequired[bool | None]
    zero_stage_known: NotRequired[bool | None]


class StatedScenario(TypedDict):
    """A workload: what is trained, where, under which contract and, where known, by which plan."""

    id: NotRequired[str | int | float | None]
    """Repeated in the answer."""
    model: dict[str, Any]
    """A Hugging Face config.json as it is, or its fields."""
    cluster: StatedCluster
    training: TrainingSpec
    plan: NotRequired[StatedPlan | None]
    """Today's configuration; absent for a cold start."""
    constraints: NotRequired[StatedConstraints | None]
    traces: NotRequired[str | None]
    """`trace:<id>` of an upload; a folder of the server with the scope operator."""
    notes: NotRequired[str | None]
    """An engineer's free text."""
    run: NotRequired[RunGoal | None]
    """Tokens, price and failures of the whole run: forecasts them."""


class Statement(TypedDict):
    """What a reader of the notes says they state, with the words it rests on."""

    field: str
    operator: NotRequired[Literal["=", "in", "not", "<=", ">=", "keep"]]
    value: Any
    quote: str
    unit: NotRequired[str | None]
    kind: NotRequired[str]
    reason: NotRequired[str | None]


class Stopping(TypedDict):
    """Why the trials ended, and what they took of the budget."""

    says: str
    expected_gain: float | None
    noise: float | None
    device_hours: float
    trials: int
    spent_device_hours: float
    spent_trials: int


class Straggler(TypedDict):
    """A rank that the others wait for."""

    rank: int
    arrives_last_ratio: float
    late_by_us: float
    late_total_us: float
    share_of_lateness: float
    cause: str
    cause_us: CauseTimes


class TermComparison(TypedDict):
    term: str
    measured_s: float
    predicted_s: float
    predicted_error_ratio: float | None
    calibrated_s: float
    calibrated_error_ratio: float | None


class ToolUse(TypedDict):
    """One use of a tool for an answer."""

    tool: str
    arguments: dict[str, Any]
    result: Any
    outcome: NotRequired[str]


TopOp = TypedDict(
    "TopOp", {"name": "str", "class": "str", "count": "int", "time_us": "float", "share_of_total": "float"}
)


class TopologySpec(TypedDict):
    """What is above the node: the fast-link domain, the network, its oversubscription."""

    nvlink_domain_size: NotRequired[int | None]
    network: NotRequired[Literal["rail", "fat-tree", "torus"] | None]
    oversubscription: NotRequired[float]
    torus_dimensions: NotRequired[list[int] | None]


class TraceContradiction(TypedDict):
    about: Literal["device", "ranks", "groups", "precision", "shapes", "step time"]
    trace: str
    scenario: str
    message: str


class TraceCreate(TypedDict):
    """A folder of traces to be uploaded."""

    name: NotRequired[str]
    """For people."""


class TraceEvidence(TypedDict):
    """A number with the place in the report that it comes from."""

    kind: NotRequired[Literal["profile", "roofline"]]
    ref: str
    value: float
    says: str


class TraceFacts(TypedDict):
    """What traces say of the job they were taken of; None or empty for what they do not record."""

    devices: list[str]
    on_host: bool
    world_size: int | None
    ranks_seen: int
    groups: dict[str, list[int]]
    precision: str | None
    widths: list[int]
    step_time_s: float | None
    compute_s: NotRequired[float | None]


class TraceMatch(TypedDict):
    """What was checked of a trace against a scenario, and what does not agree."""

    checked: list[Literal["device", "ranks", "groups", "precision", "shapes", "step time"]]
    contradictions: list[TraceContradiction]


class TrainingSpec(TypedDict):
    """The measurement contract: plans are comparable only if it is equal."""

    seq_len: int
    global_batch_size: int
    precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]
    framework: Literal[
        "accelerate",
        "automodel",
        "deepspeed",
        "huggingface",
        "internevo",
        "maxtext",
        "megatron-core",
        "nanotron",
        "torch-fsdp",
        "torch-fsdp2",
        "torchtitan",
        "other",
    ]
    flash_attention: NotRequired[bool]
    software_date: NotRequired[str | None]
    moe_dispatcher: NotRequired[Literal["alltoall", "allgather", "deepep", "hybridep"] | None]
    overlap_moe_communication: NotRequired[bool | None]
    overlap_tensor_communication: NotRequired[bool | None]
    overlap_gradient_communication: NotRequired[bool | None]
    cuda_graph: NotRequired[Literal["none", "scoped", "full"] | bool | None]
    cuda_graph_scopes: NotRequired[
        list[Literal["attn", "mamba", "mlp", "moe_router", "moe_preprocess", "moe"]] | None
    ]
    moe_transport: NotRequired[Literal["nccl", "gpu", "host-proxy"] | None]
    routing: NotRequired[Literal["forced", "natural"] | None]
    expert_imbalance: NotRequired[float | None]
    compile: NotRequired[bool | None]
    precision_scope: NotRequired[PrecisionScope | None]
    packed_mean_tokens: NotRequired[float | None]
    activation_offload: NotRequired[bool | int | None]
    optimizer_state: NotRequired[Literal["fp32", "bf16"] | None]
    gradient_dtype: NotRequired[Literal["fp32", "bf16"] | None]
    fused_loss: NotRequired[bool | None]
    capacity_factor: NotRequired[float | None]
    optimizer_offload: NotRequired[bool]
    lora: NotRequired[LoraSpec | None]


class Trial(TypedDict):
    """One trial of a session: the baseline first, then candidates."""

    key: str
    template: str
    runs: list[str]
    failure: TrialFailure | None
    device_hours: float
    seconds: float
    traces: str | None
    terms: NotRequired[dict[str, float] | None]
    step_time_s: NotRequired[float | None]
    interval_s: NotRequired[list[float] | None]
    confidence: NotRequired[float | None]
    noise: NotRequired[float | None]
    uncertainty: NotRequired[float | None]
    paired: NotRequired[PairedRatio | None]
    steps: NotRequired[int | None]
    peak_memory_bytes: NotRequired[int | None]
    nodes: NotRequired[list[str]]
    status: Literal["measured", "failed", "cancelled", "refused"]
    role: Literal["baseline", "candidate"]
    rank: int | None
    plan: Plan
    predicted: TrialPrediction
    summary: str
    refusals: list[Refusal]
    waited_s: float
    says: str
    speedup: NotRequired[float | None]
    speedup_low: NotRequired[float | None]
    speedup_high: NotRequired[float | None]


class TrialFailure(TypedDict):
    """Why a run says nothing about the plan's speed; the words are the job's own, so they are only
    data.
    """

    kind: str
    confidence: float
    evidence: list[str]


class TrialPolicy(TypedDict):
    """Which fields of the plan trials may change if a policy approves them."""

    fields: NotRequired[list[str] | None]
    """Fields of the plan; what follows from them may too; absent: any."""


class TrialPrediction(TypedDict):
    """What the model said before the trial."""

    summary: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_gib: float


class TwoRuns(TypedDict):
    """Today against the proposal on the cluster."""

    launch: str
    commands: NotRequired[list[str]]
    warmup_steps: int
    steps: int
    meaning: str


class UnreadableFile(TypedDict):
    file: str
    reason: str


class Usage(TypedDict):
    tokens: int
    cost: int | float
    answered: int
    fell_back: int


class Verification(TypedDict):
    """How many numbers were computed a second time, and which of them differ."""

    checked: int
    faults: list[NumberFault]
    holds: bool
    texts_refused: NotRequired[list[str]]


class WatchedWorkload(TypedDict):
    """A job that runs day after day, and where its newest profiles or metrics are."""

    name: str
    """Its history is kept under this name."""
    scenario: JsonObject | str
    """What `asap optimize` takes, with today's plan; in nightly.yaml also a file."""
    traces: NotRequired[str | None]
    """Pattern of folders of profiles, one folder per night."""
    metrics: NotRequired[str | None]
    """Pattern of metrics files, one file per night."""
    uploads: NotRequired[str | None]
    """Pattern of the names of uploaded traces."""
    hours_per_day: NotRequired[float]
    """Hours per day in which the job runs."""


class WhereCreate(TypedDict):
    """A training, and the clusters that could run it."""

    scenario: StatedScenario
    clusters: list[CandidateCluster]


class WorkloadList(TypedDict):
    items: list[WorkloadPublic]
    """The most wasteful first."""


class WorkloadPublic(TypedDict):
    """A workload as the last run left it."""

    name: str
    status: str
    """Regressed, slower, suspected, quiet, ..., stale, unwatched or broken."""
    reason: str | None
    wasted_device_hours_per_day: float
    updated_at: str
    run_id: str | None
    session_id: str | None
    """Session of the proposal that is open."""
    outcome: JsonObject
    """All that was said of it."""


@dataclass(frozen=True, kw_only=True)
class Session(Record):
    """One optimization: submitted, run by a worker, ended."""

    name: str | None
    """Your own name for it; pages show it first."""
    labels: dict[str, str]
    """At most 32, to find it again by."""
    priority: int
    """The higher ones run first."""
    webhook: str | None
    """Notified, with a signature, when the session ends or waits for approval; read back without its
    path, which may hold a token.
    """
    id: str
    owner: str
    """The name of the key or token that submitted it."""
    state: Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
    mode: str
    approval: str
    attempt: int
    """1, and one more for each retry."""
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None
    """What limits today's plan, when known."""
    verdict: str | None
    """The outcome in one sentence."""
    headline: Headline | None
    """The outcome, with the figures that stand beside it."""
    speedup: float | None
    """Predicted, of the proposal that counts; null: no gain."""
    measured_speedup: float | None
    """By a trial, if there was one."""
    remark: str | None
    """What people wrote about it, for people."""
    budget: dict[str, int | float | None] | None
    error: SessionFailure | None
    forked_from: ForkedFrom | None
    links: SessionLinks

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class SessionWithRequest(Session):
    """One session, with its request."""

    request: JsonObject
    """The scenario as it was submitted."""


@dataclass(frozen=True, kw_only=True)
class SessionPage(Record):
    items: list[Session]
    next_cursor: str | None
    """For the page after this one; null on the last."""


@dataclass(frozen=True, kw_only=True)
class Event(Record):
    """Something that happened; the same object stands in `data:` of the stream."""

    seq: int
    """1, 2, 3, ... without a gap; the stream's `id:`."""
    at: datetime
    node: str
    """The agent, or `session` for a change of its state."""
    kind: str
    """State, tool, reasoned, incident, ..."""
    content: JsonObject
    summary: str
    """What a person reads in one line."""


@dataclass(frozen=True, kw_only=True)
class Export(Record):
    """A configuration file of a training framework."""

    format: Literal[
        "torchtitan",
        "megatron",
        "nemo",
        "deepspeed",
        "maxtext",
        "accelerate",
        "nanotron",
        "automodel",
        "huggingface",
    ]
    file_name: str
    text: str
    judged_by: str
    """The release whose own code takes files of this format."""
    notes: list[str]
    """What the file alone does not decide."""


@dataclass(frozen=True, kw_only=True)
class Trace(Record):
    """An upload of one run's traces. A list leaves its files and its analysis out."""

    id: str
    owner: str
    name: str
    state: Literal["open", "complete"]
    """Open: files may be uploaded."""
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime
    """Then it is deleted."""
    reference: str
    """The value for a session's `traces`."""


@dataclass(frozen=True, kw_only=True)
class TraceFile(Record):
    """One file of an upload."""

    name: str
    received_bytes: int
    """Resume at this offset."""
    sha256: str | None = None
    """When the upload is complete."""


@dataclass(frozen=True, kw_only=True)
class TraceWithFiles(Trace):
    """One upload, with its files and what they say."""

    error: JsonObject | None
    """Why there is no analysis."""
    analysis: JsonObject | None
    """What `asap diagnose --json` prints; null until it is done."""
    files: list[TraceFile]


@dataclass(frozen=True, kw_only=True)
class TracePage(Record):
    items: list[Trace]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Entry(Record):
    """Advice with conditions (a playbook), or what once happened (a case)."""

    id: str
    kind: Literal["playbook", "case"]
    title: str
    status: Literal["confirmed", "hypothesis", "refuted"]
    facets: dict[str, list[str]]
    is_own: bool
    """Seen by this tenant only."""
    body: JsonObject
    """All of it; for a case with its history."""


@dataclass(frozen=True, kw_only=True)
class EntryPage(Record):
    items: list[Entry]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Hit(Record):
    entry: Entry
    score: float
    """Comparable within one search only."""
    matched: list[str]
    """Lexical, vector, facets: which methods found it."""
    warning: bool
    """A measurement contradicts it."""


@dataclass(frozen=True, kw_only=True)
class Hits(Record):
    items: list[Hit]
    methods: list[str]
    """The methods that were used."""
    limitation: str | None
    """Why a search does not use vectors, if it does not."""


@dataclass(frozen=True, kw_only=True)
class Run(Record):
    """One night of a schedule."""

    id: str
    schedule_id: str
    planned_at: datetime
    """With the schedule this is the run's identity."""
    trigger: Literal["cron", "caught_up", "manual"]
    state: Literal["queued", "running", "completed", "failed", "skipped"]
    outcome: Literal["quiet", "slower", "regression", "broken"] | None
    reason: str | None
    """Why it was skipped or failed, or which recipient it did not reach."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deliveries: list[Delivery] | None

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "failed", "skipped")


@dataclass(frozen=True, kw_only=True)
class RunPage(Record):
    items: list[Run]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Schedule(Record):
    """Workloads, and when they are looked at."""

    id: str
    name: str
    owner: str
    state: Literal["active", "paused"]
    reason: str | None
    """What keeps it from running as it should."""
    cron: str
    zone: str
    next_at: datetime | None
    """The next planned time; null while it is paused."""
    last_run: Run | None
    created_at: datetime
    updated_at: datetime
    definition: JsonObject
    """As it was given; of addresses only the host."""


@dataclass(frozen=True, kw_only=True)
class SchedulePage(Record):
    items: list[Schedule]
    next_cursor: str | None
