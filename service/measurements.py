"""Use cases of measurements: runs reported for a cluster calibrate its predictions; kept per tenant and
`cluster.name`, versioned, and undone version by version. Nothing here knows about HTTP.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from graph.report import Report
from service.db.models import measurements, new_id
from service.errors import NotFoundError
from tools.calibrate.runs import MAX_RUNS, Measured, Run, parse_run
from tools.calibrate.update import Calibrated, calibrate
from tools.cost.calibration import Calibration
from tools.errors import AsapError, InputError
from tools.scenario import Scenario
from tools.trials.gain import runs_of

MAX_CACHED = 64


@dataclass(frozen=True)
class ClusterState:
    """A cluster as its runs stand now."""

    name: str
    version: int
    """Of its newest runs that were not undone; 0: none are left."""
    updated_at: float
    learned: Calibrated
    runs: tuple[Run, ...] = ()
    """Those that were learned from."""
    probes: tuple[tuple[float, Run], ...] = ()
    """With the time at which each was reported."""


def add_runs(conn: sa.Connection, tenant: str, runs: Sequence[Run], by: str) -> dict[str, int]:
    """The version that each cluster has now; a run that is known already is not kept twice."""
    clusters: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        if not run.scenario.cluster.name:
            allowed = "the name of the cluster whose predictions the run calibrates is needed"
            raise InputError(f"runs[{number}].scenario.cluster.name", run.scenario.cluster.name, allowed)
        clusters.setdefault(run.scenario.cluster.name, []).append(run)
    return {name: _add(conn, tenant, name, own, by) for name, own in clusters.items()}


def _add(conn: sa.Connection, tenant: str, name: str, runs: Sequence[Run], by: str) -> int:
    here = (measurements.c.tenant == tenant, measurements.c.cluster == name)
    last = conn.execute(sa.select(sa.func.max(measurements.c.version)).where(*here)).scalar() or 0
    known = set(
        conn.scalars(sa.select(measurements.c.digest).where(*here, measurements.c.undone_at.is_(None)))
    )
    new = {digest: run for run in runs if (digest := _digest(run)) not in known}
    for digest, run in new.items():
        conn.execute(
            measurements.insert().values(
                id=new_id(),
                tenant=tenant,
                cluster=name,
                version=last + 1,
                reported_by=by,
                created_at=time.time(),
                digest=digest,
                run=run.to_data(),
            )
        )
    return last + 1 if new else version_of(conn, tenant, name)


def measured_runs(scenario: Scenario, report: Report) -> list[Run]:
    """What a session measured: its trials, and the step of its traces if that is of today's plan."""
    id = str(report.id or scenario.model.name)
    runs = runs_of(scenario, report.trials, id)
    today = report.diagnosis.recalibrated
    if today and report.profile and scenario.plan and not report.trials:
        runs.append(Run(scenario, Measured(step_time_s=today.measured_s), id=id, source="trace"))
    return runs


def _digest(run: Run) -> str:
    return hashlib.sha256(json.dumps(run.to_data(), sort_keys=True).encode()).hexdigest()


def version_of(conn: sa.Connection, tenant: str, name: str) -> int:
    c = measurements.c
    query = sa.select(sa.func.max(c.version)).where(
        c.tenant == tenant, c.cluster == name, c.undone_at.is_(None)
    )
    return conn.execute(query).scalar() or 0


def cluster_names(conn: sa.Connection, tenant: str) -> list[str]:
    c = measurements.c
    query = sa.select(c.cluster).distinct().where(c.tenant == tenant, c.undone_at.is_(None))
    return sorted(conn.scalars(query))


def undo(conn: sa.Connection, tenant: str, name: str) -> int:
    """Takes back the runs of the newest version; the version that is left, 0 if that was the first."""
    version, c = version_of(conn, tenant, name), measurements.c
    if not version:
        raise NotFoundError("cluster", name)
    conn.execute(
        measurements.update()
        .where(c.tenant == tenant, c.cluster == name, c.version == version)
        .values(undone_at=time.time())
    )
    return version_of(conn, tenant, name)


_learned: dict[tuple[str, str, str, int], ClusterState] = {}
"""By database, tenant, cluster and version: most sessions need the same update."""


def find_cluster(conn: sa.Connection, tenant: str, name: str | None) -> ClusterState | None:
    """What the newest runs of the cluster say; None without any."""
    version = version_of(conn, tenant, name) if name else 0
    if not name or not version:
        return None
    key = (str(conn.engine.url), tenant, name, version)
    if key not in _learned:
        if len(_learned) >= MAX_CACHED:
            _learned.clear()
        _learned[key] = _learn(conn, tenant, name, version)
    return _learned[key]


def _learn(conn: sa.Connection, tenant: str, name: str, version: int) -> ClusterState:
    c = measurements.c
    query = (
        sa.select(c.run, c.created_at)
        .where(c.tenant == tenant, c.cluster == name, c.undone_at.is_(None))
        .order_by(c.id.desc())
        .limit(MAX_RUNS)
    )
    rows = list(conn.execute(query))[::-1]
    reported = []
    for row in rows:
        try:
            reported.append((row.created_at, parse_run(row.run)))
        except AsapError:  # of an older release whose scenario this one refuses
            continue
    runs = [run for _, run in reported]
    learned = calibrate(runs, name=name)
    cluster = learned.calibration.cluster
    if cluster is not None:
        named = replace(cluster, version=version)
        learned = replace(learned, calibration=replace(learned.calibration, cluster=named))
    without = {run.number for run in learned.left_out}
    used = tuple(run for number, run in enumerate(runs) if number not in without)
    probes = tuple((at, run) for at, run in reported if run.measured.constants)
    return ClusterState(name, version, max(row.created_at for row in rows), learned, used, probes)


def calibration_of(conn: sa.Connection, tenant: str, name: str | None) -> Calibration | None:
    """For a session of this cluster; None if nothing was learned of it."""
    state = find_cluster(conn, tenant, name)
    return state.learned.calibration if state and state.learned.runs else None


def runs_known(conn: sa.Connection, tenant: str, name: str | None) -> tuple[Run, ...]:
    """What that was learned from: a session's trials join it."""
    state = find_cluster(conn, tenant, name)
    return state.runs if state else ()
