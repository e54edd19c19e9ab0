"""Where a workload's profiles and metrics are: patterns of folders, of files, or of uploaded traces."""

import glob
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import sqlalchemy as sa

from graph.request import parse_request
from service.schedules.config import WatchedWorkload, load_scenario
from service.traces.model import COMPLETE, REFERENCE, traces
from service.traces.uploads import Uploads, is_below
from tools.errors import AsapError, InputError
from tools.nightly.read import profile_time, read_metrics_night, read_profile_night

SETTLED_S = 60.0
"""A profile written to more recently may still be incomplete."""
MAX_MATCHES = 100_000


@dataclass(frozen=True)
class NightSource:
    path: Path
    at: float
    """When its last file was written."""
    is_metrics: bool = False
    reference: str | None = None
    """How a session's request names it; None for metrics, which no session reads."""


def find_sources(
    workload: WatchedWorkload, base: Path, now_s: float | None = None, roots: Sequence[Path] | None = None
) -> list[NightSource]:
    """Folders and files, oldest first. Raises InputError if the pattern matches nothing that can be read.

    With `roots`, what leads elsewhere, by a link too, is as if it were not there.
    """
    field = "metrics" if workload.metrics else "traces"
    pattern = str(getattr(workload, field))
    matches = glob.glob(pattern, root_dir=base, recursive=True)[:MAX_MATCHES]
    if roots is not None:
        matches = [path for path in matches if is_below(roots, base / path)]
    if not matches:
        where = " below ASAP_TRACE_ROOTS" if roots is not None else ""
        raise InputError(field, pattern, f"matches nothing{where}; is the pattern right?")
    sources = [source for path in matches if (source := _source(base / path, bool(workload.metrics)))]
    if not sources:
        what = "no file" if workload.metrics else "no folder with *.json, *.json.gz, *.sqlite or *.xplane.pb"
        raise InputError(field, pattern, f"{what} is among its {len(matches)} matches")
    now_s = time.time() if now_s is None else now_s
    settled = [source for source in sources if now_s - source.at >= SETTLED_S]
    if not settled:
        fresh = f"was written to in the last {SETTLED_S:.0f} s; it may be incomplete"
        raise InputError(field, pattern, fresh)
    return sorted(settled, key=lambda source: (source.at, source.path))


def _source(path: Path, is_metrics: bool) -> NightSource | None:
    """None if it is no file of metrics, or no folder of profiles."""
    try:
        if is_metrics:
            return NightSource(path, path.stat().st_mtime, is_metrics=True) if path.is_file() else None
        if path.is_dir():
            return NightSource(path, profile_time(path), reference=str(path.absolute()))
    except (InputError, OSError):
        pass
    return None


def find_uploads(
    conn: sa.Connection, tenant: str, workload: WatchedWorkload, uploads: Uploads
) -> list[NightSource]:
    """The tenant's complete uploads whose name matches, in the order in which they were completed."""
    query = sa.select(traces.c.id, traces.c.name, traces.c.completed_at).where(
        traces.c.tenant == tenant, traces.c.state == COMPLETE
    )
    rows = conn.execute(query.order_by(traces.c.completed_at, traces.c.id)).all()
    pattern = str(workload.uploads)
    found = [
        NightSource(uploads.folder(row.id), row.completed_at, reference=f"{REFERENCE}{row.id}")
        for row in rows
        if fnmatchcase(row.name, pattern)
    ]
    if not found:
        raise InputError("uploads", pattern, f"matches the name of none of {len(rows)} complete uploads")
    return found


@dataclass(frozen=True)
class WorkloadCheck:
    """The newest profile, or the reason why there is none."""

    name: str
    newest: str | None = None
    step_time_s: float | None = None
    reason: str | None = None


def check_workload(workload: WatchedWorkload, base: Path) -> WorkloadCheck:
    try:
        described = load_scenario(workload, base)
        parse_request(described)
        if workload.uploads:
            allowed = "allowed in schedules of 'asap serve'; here give traces"
            raise InputError("uploads", workload.uploads, allowed)
        newest = find_sources(workload, base)[-1].path
        if workload.metrics:
            night = read_metrics_night(described, newest)
        else:
            night, _ = read_profile_night(described, newest)
    except AsapError as error:
        return WorkloadCheck(workload.name, reason=str(error))
    return WorkloadCheck(workload.name, str(newest), night.step_time_s)
