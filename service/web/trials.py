"""/sessions/{id}/trials: the jobs of a session's trials while they run: step times, loss, end of the log."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from service.api.deps import AppDep, Id, Reader
from service.db.models import TERMINAL
from service.db.sessions import MAX_EVENTS, events_after, get_session
from service.render.text import seconds
from service.render.trends import spark_points
from service.render.view import find_view
from service.runtime import jobs_folder
from service.web.rendering import PageRoute, page
from service.web.session_view import SessionPage
from tools.errors import InputError
from tools.launch.files import open_plain, tail
from tools.launch.folder import JobFolder

PROGRESS = "progress.jsonl"
"""A line per step, as the reference trainer writes it; a trainer may leave it out."""
LOG_LINES = 40
MAX_BYTES = 1 << 18
WIDTH, HEIGHT = 600.0, 120.0


@dataclass(frozen=True)
class Curve:
    """Of one figure over the steps, as an SVG polyline."""

    name: str
    values: Sequence[float]
    last: str

    @property
    def points(self) -> str:
        return spark_points(self.values, WIDTH, HEIGHT)


@dataclass(frozen=True)
class TrialJob:
    key: str
    template: str
    state: str
    step_times_s: Sequence[float]
    losses: Sequence[float]
    log: Sequence[str]

    @property
    def curves(self) -> Iterator[Curve]:
        if self.step_times_s:
            yield Curve("step time", self.step_times_s, seconds(self.step_times_s[-1]))
        if self.losses:
            yield Curve("loss", self.losses, f"{self.losses[-1]:.4g}")


def read_job(root: Path, key: str, template: str) -> TrialJob:
    """What the job's folder says now; on a machine that does not see the folder, only its name."""
    try:
        folder = JobFolder.of(root, key)
    except InputError:
        return TrialJob(key, template, "unknown", (), (), ())
    final = folder.find_final()
    state = "cancelled" if folder.is_cancelled else final.state.value if final else "running"
    times, losses = _progress(folder.out / PROGRESS)
    known = folder.path.is_dir()
    return TrialJob(
        key, template, state if known else "not on this machine", times, losses, tail(folder.log, LOG_LINES)
    )


def _progress(path: Path) -> tuple[list[float], list[float]]:
    """Lines that are no step, a half-written last one say, are left out."""
    times: list[float] = []
    losses: list[float] = []
    file = open_plain(path)  # the job may write there, so no links are followed
    if file is None:
        return times, losses
    with file:
        file.seek(max(0, file.seek(0, 2) - MAX_BYTES))
        lines = file.read(MAX_BYTES).decode("utf-8", "replace").splitlines()
    for line in lines:
        try:
            step = json.loads(line)
        except ValueError:
            continue
        if isinstance(step, dict):
            for name, values in (("step_s", times), ("loss", losses)):
                value = step.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
                    values.append(float(value))
    return times, losses


router = APIRouter(route_class=PageRoute)


@router.get("/sessions/{id}/trials")
def show(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0, MAX_EVENTS)
    launched = {str(event.content["job"]): event for event in events if event.content.get("job")}
    root = jobs_folder(app.settings)
    jobs = [read_job(root, key, str(event.content.get("template") or "")) for key, event in launched.items()]
    return page(
        request,
        "trials",
        caller,
        session=SessionPage(row, find_view(row)),
        tab="trials",
        jobs=jobs[::-1],
        outcomes=[event.content for event in events if event.kind == "trial"],
        is_live=row.state not in TERMINAL,
        width=WIDTH,
        height=HEIGHT,
    )
