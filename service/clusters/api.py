"""/v1/measurements: runs of the installation's own clusters, which calibrate their predictions."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, Field

from service.access.store import record
from service.clusters.usecases import (
    ClusterState,
    add_runs,
    find_clusters,
    get_cluster,
    list_clusters,
    undo,
)
from service.http.auth import Reader, Submitter
from service.http.deps import AppDep, Limit, Public
from service.http.strict import StrictRoute
from service.logs import request_id
from service.strict_json import JsonObject
from tools.model.cluster_findings import ClusterFinding
from tools.model.runs import parse_runs
from tools.model.update import CheckedRun, LeftOut, MovedConstant
from tools.scenario.parse import EXAMPLE

RUN: JsonObject = {"scenario": EXAMPLE, "measured": {"step_time_s": 9.7, "peak_memory_gib": 61.2}}


router = APIRouter(prefix="/v1/measurements", tags=["measurements"], route_class=StrictRoute)
ClusterName = Annotated[str, Path(max_length=200, description="`cluster.name` of the scenarios")]
ClusterCursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")]
ReportedRuns = Annotated[
    list[JsonObject] | JsonObject,
    Body(
        description="one run, an array of them, or an object with the array under `runs`; rows as of "
        "`asap calibrate`, with `cluster.name`",
        examples=[RUN],
    ),
]


class ClusterPublic(Public):
    """What the runs of a cluster say."""

    name: str
    version: int = Field(description="0: all of its runs were taken back")
    updated_at: datetime | None = None
    label: str = Field(serialization_alias="says", description="12 runs, ±4.1%")
    runs: int
    error_before: float = Field(description="mean error of the general model on these runs")
    error_after: float = Field(description="mean error of each run as the others predict it")
    memory_factor: float = 1.0
    findings: list[ClusterFinding] = Field(
        default_factory=list, description="what is odd about the runs, and what to measure; the gravest first"
    )
    checked: list[CheckedRun] = Field(default_factory=list)
    left_out: list[LeftOut] = Field(default_factory=list)
    constants: list[MovedConstant] = Field(
        default_factory=list, description="this cluster's own constants beside the usual ones"
    )

    @classmethod
    def of(cls, state: ClusterState) -> Self:
        learned = state.learned
        return cls(
            name=state.name,
            version=state.version,
            updated_at=datetime.fromtimestamp(state.updated_at).astimezone(),
            label=learned.label,
            runs=learned.runs,
            error_before=learned.error_before,
            error_after=learned.error_after,
            memory_factor=state.memory_factor,
            findings=list(learned.findings),
            checked=list(learned.checked),
            left_out=list(learned.left_out),
            constants=list(learned.constants),
        )


class ClusterList(BaseModel):
    items: list[ClusterPublic]
    next_cursor: str | None = None


@router.post("", status_code=201, summary="Report runs of a cluster")
def add_measurements(rows: ReportedRuns, app: AppDep, caller: Submitter) -> ClusterList:
    """Sessions of the cluster are predicted with them from now on. Implausible runs are kept and named, but
    not learned from; a run that is known already is not stored twice."""
    given = rows.get("runs", [rows]) if isinstance(rows, dict) else rows
    runs = parse_runs(given if isinstance(given, list) else [given])
    with app.database.begin() as conn:
        most = None if caller.is_local else app.settings.tenant_clusters
        versions = add_runs(conn, caller.tenant, runs, caller.name[:200], most)
        for name, version in versions.items():
            details = {"version": version, "runs": len(runs)}
            record(conn, caller.tenant, caller.name, "cluster.report", name, request_id.get(), **details)
    states = find_clusters(app.database, caller.tenant, versions)
    return ClusterList(items=[ClusterPublic.of(state) for state in states])


@router.get("", summary="List the clusters that runs were reported for")
def list_all(app: AppDep, caller: Reader, cursor: ClusterCursor = None, limit: Limit = 50) -> ClusterList:
    states, next_cursor = list_clusters(app.database, caller.tenant, cursor, limit)
    return ClusterList(items=[ClusterPublic.of(state) for state in states], next_cursor=next_cursor)


@router.get("/{name}", summary="What the runs of a cluster say")
def show_cluster(name: ClusterName, app: AppDep, caller: Reader) -> ClusterPublic:
    return ClusterPublic.of(get_cluster(app.database, caller.tenant, name))


@router.delete("/{name}", summary="Take back the newest runs of a cluster")
def undo_measurements(name: ClusterName, app: AppDep, caller: Submitter) -> ClusterPublic:
    """Those that were reported together; a second call takes back the ones before."""
    with app.database.begin() as conn:
        version = undo(conn, caller.tenant, name)
        record(conn, caller.tenant, caller.name, "cluster.undo", name, request_id.get(), version=version)
    if not version:
        return ClusterPublic(name=name, version=0, label="no runs", runs=0, error_before=0, error_after=0)
    return ClusterPublic.of(get_cluster(app.database, caller.tenant, name))
