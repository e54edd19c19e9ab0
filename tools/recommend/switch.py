"""What it takes to move from today's plan to a proposal: today's checkpoint, and two runs that decide."""

from typing import Annotated

from tools.recommend.report import Checkpoint, Speedup, TwoRuns
from tools.scenario import Plan, Scenario
from tools.scenario.fields import FromList, StrictModel
from tools.scenario.frameworks import framework_table, read_row

LAYOUT = ("tp", "pp", "vpp", "ep", "etp", "dp", "cp", "dp_shard", "zero_stage")
"""Plan fields that decide which rank holds what."""
STATE_BYTES = 14.0
"""A parameter in a checkpoint has a 16-bit weight, fp32 copy, Adam's two moments (ZeRO, arXiv 1910.02054)."""
WARMUP_STEPS, STEPS = 3, 20
"""As of ASAP's own trials (docs/trials.md)."""
FILE = "FILE"
"""Stands for the user's own file where its name is not known."""


class CheckpointData(StrictModel):
    """`[checkpoint]` of a framework: what becomes of a checkpoint under another plan."""

    reshards: Annotated[tuple[str, ...], FromList]
    """Plan fields that may change while it is loaded as it was saved."""
    load: str = ""
    """What loads it so; empty: nothing is needed."""
    convert: str = ""
    """What makes it fit every other change; empty: nothing is known."""
    source: str


class LaunchData(StrictModel):
    """`[launch]` of a framework: what starts a job."""

    command: str
    """With {file}, {nodes} and {devices_per_node}."""
    source: str


def checkpoint_under(scenario: Scenario, today: Plan, plan: Plan, parameters: int) -> Checkpoint | None:
    """Whether today's checkpoint loads under the plan; None for a framework without data."""
    table = framework_table(scenario.training.framework).get("checkpoint")
    if table is None:
        return None
    data = read_row(CheckpointData, scenario.training.framework, table)
    changed = [name for name in LAYOUT if getattr(today, name) != getattr(plan, name)]
    moved_gib = parameters * STATE_BYTES / 2**30
    if not changed:
        return Checkpoint(loads="as it is", moved_gib=0.0, source=data.source)
    if set(changed) <= {*data.reshards}:
        return Checkpoint(loads="resharded", command=data.load, moved_gib=moved_gib, source=data.source)
    loads = "converted" if data.convert else "unknown"
    return Checkpoint(loads=loads, command=data.convert, moved_gib=2 * moved_gib, source=data.source)


def two_runs(scenario: Scenario, expected: Speedup) -> TwoRuns:
    """The shortest comparison on the cluster, and what its outcome would mean."""
    low, high = expected.speedup_low or 1.0, expected.speedup_high or 1.0
    tie = "if it is not outside what the two runs of today differ by, it is a tie"
    table = framework_table(scenario.training.framework).get("launch")
    launch = f"run {FILE}"
    if table is not None:
        data, cluster = read_row(LaunchData, scenario.training.framework, table), scenario.cluster
        per_node = min(cluster.devices_per_node, cluster.num_devices)
        launch = data.command.format(
            file=FILE, nodes=-(-cluster.num_devices // per_node), devices_per_node=per_node
        )
    return TwoRuns(
        launch=launch,
        warmup_steps=WARMUP_STEPS,
        steps=STEPS,
        meaning=f"compare medians: {low:.2f}x to {high:.2f}x is expected in 8 of 10 cases; {tie}",
    )


def with_commands(runs: TwoRuns, rank: int, file: str = FILE, report: str = "report.json") -> TwoRuns:
    """Today, the proposal of this rank, today again: the same command on the same nodes."""
    launch, diff = runs.launch.replace(FILE, file), f"proposal-{rank}.diff"
    commands = [
        launch,
        f"asap patch {file} --report {report} --plan {rank} | tee {diff} | git apply",
        launch,
        f"git apply -R {diff}",
        launch,
    ]
    return runs.model_copy(update={"commands": commands})
