"""Use cases of measurements: runs reported for a cluster calibrate its predictions; kept per tenant and
`cluster.name`, versioned, and undone version by version. Nothing here knows about HTTP.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from graph.report import Report
from service import __version__
from service.clusters.model import cluster_fits, measurements
from service.db.engine import Database
from service.db.ids import new_id
from service.db.queries import insert_into, lock_tenant
from service.errors import NotFoundError, QuotaError
from tools.errors import AsapError, InputError
from tools.model.calibration import Calibration, shipped_calibration
from tools.model.runs import MAX_RUNS, Measured, Run, parse_run
from tools.model.update import Calibrated, calibrate
from tools.scenario import Scenario
from tools.trials.gain import runs_of

MAX_CACHED = 500
_learned: dict[tuple[str, str, str, int], "ClusterState"] = {}
"""By database, tenant, cluster and version: most sessions need the same update."""


@dataclass(frozen=True)
class ClusterState:
    """A cluster as its runs stand now."""

    name: str
    version: int
    """Version of its newest runs that were not undone; 0: none are left."""
    updated_at: float
    learned: Calibrated
    runs: tuple[Run, ...] = ()
    """All that count, those that nothing was learned from among them."""
    probes: tuple[tuple[float, Run], ...] = ()
    """With the time at which each was reported."""

    @property
    def memory_factor(self) -> float:
        cluster = self.learned.calibration.cluster
        return cluster.memory_factor if cluster else 1.0


def add_runs(
    conn: sa.Connection, tenant: str, runs: Sequence[Run], by: str, most: int | None = None
) -> dict[str, int]:
    """Each cluster's new version. A tenant has at most `most` clusters; a known run is not stored twice."""
    lock_tenant(conn, tenant)
    clusters: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        if not run.scenario.cluster.name:
            allowed = "the name of the cluster whose predictions the run calibrates is needed"
            raise InputError(f"runs[{number}].scenario.cluster.name", run.scenario.cluster.name, allowed)
        clusters.setdefault(run.scenario.cluster.name, []).append(run)
    names = sa.select(measurements.c.cluster).distinct().where(measurements.c.tenant == tenant)
    if most and len(clusters.keys() | set(conn.scalars(names))) > most:
        raise QuotaError(f"this tenant reports runs of at most {most} clusters")
    versions = {}
    for name, reported in clusters.items():
        in_cluster = (measurements.c.tenant == tenant, measurements.c.cluster == name)
        last = conn.scalar(sa.select(sa.func.max(measurements.c.version)).where(*in_cluster)) or 0
        stored = sa.select(measurements.c.digest).where(*in_cluster, measurements.c.undone_at.is_(None))
        known = set(conn.scalars(stored))
        rows = {}
        for row in (run.to_data() for run in reported):
            digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
            if digest not in known:
                rows[digest] = row
        same = {"tenant": tenant, "cluster": name, "version": last + 1, "reported_by": by}
        new = [
            {"id": new_id(), "digest": digest, "run": row, "created_at": time.time(), **same}
            for digest, row in rows.items()
        ]
        if new:
            conn.execute(measurements.insert(), new)
        versions[name] = last + 1 if new else version_of(conn, tenant, name)
    return versions


def measured_runs(scenario: Scenario, report: Report) -> list[Run]:
    """What a session measured: its trials, and the step of its traces if that is of today's plan."""
    id = str(report.id or scenario.model.name)
    runs = runs_of(scenario, report.trials, id)
    today = report.diagnosis.recalibrated
    if today and report.profile and scenario.plan and not report.trials:
        measured = Measured(step_time_s=today.measured_s)
        runs.append(Run(scenario=scenario, measured=measured, id=id, source="trace"))
    return runs


def version_of(conn: sa.Connection, tenant: str, name: str) -> int:
    c = measurements.c
    query = sa.select(sa.func.max(c.version)).where(
        c.tenant == tenant, c.cluster == name, c.undone_at.is_(None)
    )
    return conn.execute(query).scalar() or 0


def find_clusters(database: Database, tenant: str, names: Iterable[str]) -> list[ClusterState]:
    """Those of these names that have runs."""
    states = [find_cluster(database, tenant, name) for name in names]
    return [state for state in states if state]


def list_clusters(
    database: Database, tenant: str, cursor: str | None, limit: int
) -> tuple[list[ClusterState], str | None]:
    """By name, after the one that the cursor names; with the cursor of the next page."""
    c = measurements.c
    query = sa.select(c.cluster).distinct().where(c.tenant == tenant, c.undone_at.is_(None))
    query = query if cursor is None else query.where(c.cluster > cursor)
    with database.read() as conn:
        names = list(conn.scalars(query.order_by(c.cluster).limit(limit + 1)))
    states = find_clusters(database, tenant, names[:limit])
    return states, names[limit - 1] if len(names) > limit else None


def get_cluster(database: Database, tenant: str, name: str) -> ClusterState:
    """Raises NotFoundError."""
    state = find_cluster(database, tenant, name)
    if state is None:
        raise NotFoundError("cluster", name)
    return state


def undo(conn: sa.Connection, tenant: str, name: str) -> int:
    """Takes back the runs of the newest version; the version that is left, 0 if that was the first."""
    version, c = version_of(conn, tenant, name), measurements.c
    if not version:
        raise NotFoundError("cluster", name)
    same = (c.tenant == tenant, c.cluster == name, c.version == version)
    conn.execute(measurements.update().where(*same).values(undone_at=time.time()))
    return version_of(conn, tenant, name)


def find_cluster(database: Database, tenant: str, name: str | None) -> ClusterState | None:
    """What the newest runs of the cluster say; None without any. A version is fitted once for all processes,
    outside of any transaction, since that may take seconds."""
    if not name:
        return None
    with database.read() as conn:
        version = version_of(conn, tenant, name)
        place = (str(conn.engine.url), tenant, name, version)
        if not version or place in _learned:
            return _learned.get(place)
        c = measurements.c
        own = (c.tenant == tenant, c.cluster == name, c.undone_at.is_(None))
        newest = sa.select(c.created_at, c.run).where(*own).order_by(c.id.desc()).limit(MAX_RUNS)
        rows, stored = conn.execute(newest).all()[::-1], _find_fit(conn, tenant, name, version)
    reported = []
    for at, row in rows:
        try:
            reported.append((at, parse_run(row)))
        except AsapError:  # of an older release whose scenario this one refuses
            continue
    runs = [run for _, run in reported]
    learned = stored or calibrate(runs, name=name)
    cluster = learned.calibration.cluster
    if cluster is not None:
        named = replace(cluster, version=version)
        learned = replace(learned, calibration=replace(learned.calibration, cluster=named))
    if stored is None:
        _keep_fit(database, tenant, name, version, learned)
    probes = tuple((at, run) for at, run in reported if run.measured.constants)
    if len(_learned) >= MAX_CACHED:
        _learned.pop(next(iter(_learned)))
    _learned[place] = ClusterState(name, version, max(at for at, _ in rows), learned, tuple(runs), probes)
    return _learned[place]


def _find_fit(conn: sa.Connection, tenant: str, name: str, version: int) -> Calibrated | None:
    """None if nobody has fitted that version yet, or another release's model has."""
    c = cluster_fits.c
    same = (c.tenant == tenant, c.cluster == name, c.version == version, c.model == _model())
    data = conn.scalar(sa.select(c.fit).where(*same))
    try:
        return None if data is None else _fits().validate_python(data)
    except ValidationError:
        return None


def _keep_fit(database: Database, tenant: str, name: str, version: int, learned: Calibrated) -> None:
    data = _fits().dump_python(learned, mode="json", by_alias=True, exclude={"calibration": {"residual"}})
    row = {"model": _model(), "fit": data}
    older = (
        cluster_fits.c.tenant == tenant,
        cluster_fits.c.cluster == name,
        cluster_fits.c.version < version,
    )
    with database.begin() as conn:
        conn.execute(cluster_fits.delete().where(*older))  # fitted again if a version is taken back
        new = insert_into(conn, cluster_fits).values(tenant=tenant, cluster=name, version=version, **row)
        conn.execute(new.on_conflict_do_update(index_elements=["tenant", "cluster", "version"], set_=row))


@cache
def _fits() -> TypeAdapter[Calibrated]:
    return TypeAdapter(Calibrated)


@cache
def _model() -> str:
    """What a fit depends on besides the runs: the release and its shipped calibration."""
    shipped = json.dumps(shipped_calibration().to_data(), sort_keys=True)
    return hashlib.sha256(f"{__version__} {shipped}".encode()).hexdigest()


def calibration_of(database: Database, tenant: str, name: str | None) -> Calibration | None:
    """For a session of this cluster; None if nothing was learned of it."""
    state = find_cluster(database, tenant, name)
    calibration = state.learned.calibration if state else None
    return calibration if state and (state.learned.runs or state.learned.calibration.seen) else None


def runs_known(database: Database, tenant: str, name: str | None) -> tuple[Run, ...]:
    """The runs of that: a session's trials join them, and all are judged again."""
    state = find_cluster(database, tenant, name)
    return state.runs if state else ()
