"""/sessions/{id}/trials: the jobs of a session's trials while they run: step times, loss, end of the log."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fastapi import APIRouter, Response

from graph.events import TrialEnded, TrialWaiting, parse_event
from service.errors import NotFoundError
from service.http.deps import Id
from service.render.charts import Chart, axis, chart, line
from service.render.text import seconds
from service.runtime import jobs_folder
from service.sessions.pages.view import follow_session
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage
from tools.errors import InputError
from tools.launch.folder import JobFolder, read_end, tail

PROGRESS = "progress.jsonl"
"""A line per step, as the reference trainer writes it; a trainer may leave it out."""
STEP_TIME = "step time"
LOG_LINES = 40
MAX_BYTES = 1 << 18
CURVE_HEIGHT = 240

router = APIRouter(route_class=PageRoute)


class Curve(NamedTuple):
    """One figure over the steps."""

    name: str
    values: Sequence[float]
    text: Callable[[float], str]

    @property
    def last(self) -> str:
        return self.text(self.values[-1])

    def chart(self, today: float | None) -> Chart:
        """With its median, and what the baseline of the session measured."""
        steps = list(range(1, len(self.values) + 1))
        drawn = line(self.name, steps, self.values, "solid", "--accent")
        drawn["texts"] = [
            f"step {at}: {self.text(value)}" for at, value in zip(steps, self.values, strict=True)
        ]
        ends, middle = [1, len(self.values)], median(self.values)
        layers = [drawn, line(f"median {self.text(middle)}", ends, [middle] * 2, "dot")]
        if today:
            layers.append(line(f"today, measured {self.text(today)}", ends, [today] * 2, "dash", "--ink"))
        y = [value for layer in layers for value in layer["y"]]
        return chart(axis("step", steps, "count"), axis(f"{self.name}{self.unit}", y), CURVE_HEIGHT, layers)

    @property
    def unit(self) -> str:
        return ", s" if self.name == STEP_TIME else ""


class TrialJob(NamedTuple):
    key: str
    template: str
    state: str
    step_times_s: Sequence[float] = ()
    losses: Sequence[float] = ()
    log: Sequence[str] = ()

    @property
    def curves(self) -> list[Curve]:
        curves = [Curve(STEP_TIME, self.step_times_s, seconds), Curve("loss", self.losses, "{:.4g}".format)]
        return [curve for curve in curves if curve.values]


@router.get("/sessions/{id}/trials")
def show(id: Id, page: ReaderPage) -> Response:
    session, events = follow_session(page, id)
    parsed = [parse_event(event.kind, event.content) for event in events]
    launched = {
        event.job: event.template or "" for event in parsed if isinstance(event, TrialWaiting) and event.job
    }
    root = jobs_folder(page.app.settings)
    return page(
        "trials",
        session=session,
        tab="trials",
        jobs=[read_job(root, key, template) for key, template in launched.items()][::-1],
        outcomes=[event for event in parsed if isinstance(event, TrialEnded)],
    )


@router.get("/sessions/{id}/trials/{key}/{name}")
def get_curve(id: Id, key: str, name: str, page: ReaderPage) -> Response:
    _, events = follow_session(page, id)
    parsed = [parse_event(event.kind, event.content) for event in events]
    if not any(isinstance(event, TrialWaiting) and event.job == key for event in parsed):
        raise NotFoundError("job", key)
    job = read_job(jobs_folder(page.app.settings), key, "")
    curve = next((curve for curve in job.curves if curve.name == name), None)
    if curve is None:
        raise NotFoundError("curve", name)
    ended = [event for event in parsed if isinstance(event, TrialEnded) and event.role == "baseline"]
    today_s = ended[-1].step_time_s if ended and name == STEP_TIME else None
    return page.figure(curve.chart(today_s))


def read_job(root: Path, key: str, template: str) -> TrialJob:
    """What the job's folder says now; on a machine that does not see the folder, only its name."""
    try:
        folder = JobFolder.of(root, key)
    except InputError:
        return TrialJob(key, template, "unknown")
    final = folder.find_final()
    state = "cancelled" if folder.is_cancelled else final.state.value if final else "running"
    if not folder.path.is_dir():
        state = "not on this machine"
    series: dict[str, list[float]] = {"step_s": [], "loss": []}
    for written in read_end(folder.out / PROGRESS, MAX_BYTES).splitlines():
        try:
            step = json.loads(written)
        except ValueError:  # no step: a half-written last line, say
            continue
        for name, values in series.items():
            value = step.get(name) if isinstance(step, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
                values.append(float(value))
    return TrialJob(key, template, state, series["step_s"], series["loss"], tail(folder.log, LOG_LINES))
