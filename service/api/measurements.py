"""/v1/measurements: runs of the installation's own clusters, which calibrate their predictions."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel, Field

from service.api.deps import AppDep, Reader, StrictRoute, Submitter, get_request_id
from service.db.access import record
from service.errors import NotFoundError
from service.measurements import ClusterState, add_runs, cluster_names, find_cluster, undo
from service.schemas import EXAMPLE, Public
from service.strict_json import JsonObject
from tools.calibrate.runs import parse_runs

RUN: JsonObject = {"scenario": EXAMPLE, "measured": {"step_time_s": 9.7, "peak_memory_gib": 61.2}}


class RunCheck(Public):
    """A run beside its prediction without any run, and as the other runs predict it."""

    number: int
    id: str
    measured_s: float
    before_s: float
    after_s: float


class RunLeftOut(Public):
    number: int
    id: str
    why: str


class ConstantMoved(Public):
    name: str
    before: float
    after: float
    meaning: str


class ClusterPublic(Public):
    """What the runs of a cluster say."""

    name: str
    version: int = Field(description="0: all of its runs were taken back")
    updated_at: datetime | None = None
    says: str = Field(description="12 runs, ±4.1%")
    runs: int
    error_before: float = Field(description="mean error of the general model on these runs")
    error_after: float = Field(description="mean error of each run as the others predict it")
    memory_factor: float = 1.0
    checked: list[RunCheck] = Field(default_factory=list)
    left_out: list[RunLeftOut] = Field(default_factory=list)
    constants: list[ConstantMoved] = Field(
        default_factory=list, description="this cluster's own constants beside the usual ones"
    )


class ClusterList(BaseModel):
    items: list[ClusterPublic]


def public_cluster(state: ClusterState) -> ClusterPublic:
    learned = state.learned
    cluster = learned.calibration.cluster
    return ClusterPublic(
        name=state.name,
        version=state.version,
        updated_at=datetime.fromtimestamp(state.updated_at).astimezone(),
        says=learned.says,
        runs=learned.runs,
        error_before=learned.error_before,
        error_after=learned.error_after,
        memory_factor=cluster.memory_factor if cluster else 1.0,
        checked=[RunCheck(**asdict(run)) for run in learned.checked],
        left_out=[RunLeftOut(**asdict(run)) for run in learned.left_out],
        constants=[ConstantMoved(**asdict(constant)) for constant in learned.constants],
    )


router = APIRouter(prefix="/v1/measurements", tags=["measurements"], route_class=StrictRoute)
Name = Annotated[str, Path(max_length=200, description="`cluster.name` of the scenarios")]
Rows = Annotated[
    list[JsonObject] | JsonObject,
    Body(
        description="one run, an array of them, or an object with the array under `runs`; rows as of "
        "`asap calibrate`, with `cluster.name`",
        examples=[RUN],
    ),
]


@router.post("", status_code=201, summary="Report runs of a cluster")
def add_measurements(rows: Rows, app: AppDep, caller: Submitter) -> ClusterList:
    """Sessions of the cluster are predicted with them from now on. Implausible runs are kept and named, but
    not learned from; a run that is known already is not stored twice."""
    given = rows.get("runs", [rows]) if isinstance(rows, dict) else rows
    runs = parse_runs(given if isinstance(given, list) else [given])
    with app.database.begin() as conn:
        versions = add_runs(conn, caller.tenant, runs, caller.name[:200])
        for name, version in versions.items():
            details = {"version": version, "runs": len(runs)}
            record(conn, caller.tenant, caller.name, "cluster.report", name, get_request_id(), **details)
    with app.database.read() as conn:
        states = [find_cluster(conn, caller.tenant, name) for name in versions]
    return ClusterList(items=[public_cluster(state) for state in states if state])


@router.get("", summary="List the clusters that runs were reported for")
def list_clusters(app: AppDep, caller: Reader) -> ClusterList:
    with app.database.read() as conn:
        names = cluster_names(conn, caller.tenant)
        states = [find_cluster(conn, caller.tenant, name) for name in names]
    return ClusterList(items=[public_cluster(state) for state in states if state])


@router.get("/{name}", summary="What the runs of a cluster say")
def get_cluster(name: Name, app: AppDep, caller: Reader) -> ClusterPublic:
    with app.database.read() as conn:
        state = find_cluster(conn, caller.tenant, name)
    if state is None:
        raise NotFoundError("cluster", name)
    return public_cluster(state)


@router.delete("/{name}", summary="Take back the newest runs of a cluster")
def undo_measurements(name: Name, app: AppDep, caller: Submitter) -> ClusterPublic:
    """Those that were reported together; a second call takes back the ones before."""
    with app.database.begin() as conn:
        version = undo(conn, caller.tenant, name)
        record(conn, caller.tenant, caller.name, "cluster.undo", name, get_request_id(), version=version)
    with app.database.read() as conn:
        state = find_cluster(conn, caller.tenant, name)
    if state is None:
        return ClusterPublic(name=name, version=0, says="no runs", runs=0, error_before=0, error_after=0)
    return public_cluster(state)
