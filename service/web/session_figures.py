"""The figures of a session's page by name, from its report, its searched space and its traces."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from service.api.deps import run_bounded_search
from service.api.errors import ApiError
from service.api.state import AppState
from service.db.models import SessionRow
from service.db.traces import get_trace
from service.errors import NotFoundError
from service.render.plan_figures import (
    AXES,
    Dot,
    Space,
    axes_of,
    memory_figure,
    mesh_figure,
    space_figure,
    step_time_figure,
)
from service.render.plotly import Figure
from service.render.trace_figures import (
    Point,
    Transfer,
    collectives_figure,
    lateness_figure,
    measured_collectives_figure,
    measured_roofline_figure,
    roofline_figure,
    terms_figure,
    timeline_figure,
)
from service.render.view import View, read_workload
from service.traces import find_reference
from service.web.session_view import TODAY, SessionView, find_baseline
from tools.cost.memory import GIB
from tools.cost.operations import list_messages, list_operations
from tools.hardware import get_device
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.search.search import Ranked, Search
from tools.search.space import decoded
from tools.trace.rank_profile import find_device
from tools.trace.report import DrawnReport, analyse_folder

SHOWN = 1200
FRONT = 200
MOST_KEPT = 32

Data = Mapping[str, Any]
Progress = Callable[[float], None]


class Searched:
    """The spaces that were drawn last: a page that is looked at again costs no search."""

    def __init__(self) -> None:
        self._lock, self._kept = Lock(), OrderedDict[str, tuple[list[Dot], list[Dot]]]()

    def find(self, key: str) -> tuple[list[Dot], list[Dot]] | None:
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: str, dots: tuple[list[Dot], list[Dot]]) -> None:
        with self._lock:
            self._kept[key] = dots
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)


def search_dots(workload: Workload, progress: Progress | None = None) -> tuple[list[Dot], list[Dot]]:
    """Plans that fit, the fastest first, and the front of time against memory."""
    found = Search(workload.scenario, workload.constraints, workload.calibration).run(progress)
    return _dots(found.best, SHOWN), _dots(found.front, FRONT)


def space_of(view: View, dots: tuple[list[Dot], list[Dot]]) -> Space:
    plans, front = dots
    return Space(
        plans=plans,
        front=front,
        proposals=[_planned(one.summary, one.prediction) for one in view.proposals],
        today=[
            _planned(f"{one.name}: {one.summary}", one.prediction) for one in view.plans if not one.proposal
        ],
        brought=_brought(view.report["considered"]),
        limit_gib=view.limit_gib,
    )


def _dots(ranked: Ranked, most: int) -> list[Dot]:
    """Every so many: of thousands a picture tells no more."""
    count = len(ranked.step_time_s)
    rows = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return [
        Dot(
            float(ranked.memory_bytes[row]) / GIB,
            float(ranked.step_time_s[row]),
            short(Plan.model_validate(decoded(ranked.plans, row))),
        )
        for row in rows
    ]


def _planned(says: str, prediction: Data) -> Dot:
    return Dot(prediction["peak_memory_gib"], prediction["step_time_s"], says)


def _brought(considered: Sequence[Data]) -> list[Dot]:
    """Those of them that could be predicted."""
    told = [(one, (one.get("proposal") or {}).get("prediction")) for one in considered]
    return [_planned(f"{one['origin']}: {one['summary']}", found) for one, found in told if found]


AGAIN_S = 2


def get_analysis(app: AppState, row: SessionRow) -> DrawnReport:
    """The report of `asap diagnose`, with what figures need; NotFoundError if there are no traces."""
    traces = str((row.request or {}).get("traces") or "")
    id = find_reference(traces)
    if not traces:
        raise NotFoundError("trace of session", row.id)
    if id:
        return _of_upload(app, row.tenant, id)
    return run_bounded_search(app, lambda _: _of_folder(traces, _written(Path(traces))))


def _of_upload(app: AppState, tenant: str, id: str) -> DrawnReport:
    with app.database.read() as conn:
        trace = get_trace(conn, tenant, id)
    if trace.analysis is None:
        if trace.error:
            raise NotFoundError("analysis of trace", id)
        app.analyses.want(trace)
        wait = {"Retry-After": str(AGAIN_S)}
        raise ApiError("unavailable", "the traces are being analysed; ask again", headers=wait)
    return DrawnReport.model_validate(trace.analysis)


def _written(folder: Path) -> tuple[tuple[Path, int], ...]:
    """Its files, and when each was written."""
    from tools.trace.folder import find_trace_files

    return tuple((file, file.stat().st_mtime_ns) for file in find_trace_files(folder))


@lru_cache(maxsize=8)
def _of_folder(folder: str, _files: tuple[tuple[Path, int], ...]) -> DrawnReport:
    """Kept for as long as nothing in the folder is written."""
    return analyse_folder(Path(folder)).drawn()


@dataclass(frozen=True)
class Asked:
    app: AppState
    searched: Searched
    shown: SessionView
    view: View
    plan: str
    """`today`, or the rank of a proposal."""
    by: str

    @property
    def workload(self) -> Workload:
        return read_workload(self.shown.row.request or {}, self.view.report)

    @property
    def chosen(self) -> Plan:
        baseline = find_baseline(self.workload, self.view.report) if self.plan == TODAY else None
        if baseline:
            return baseline
        plans = {str(one["rank"]): one["plan"] for one in self.view.report["proposals"]}
        if self.plan not in plans:
            raise NotFoundError("plan", self.plan)
        return Plan.model_validate(plans[self.plan])

    @property
    def scenario(self) -> Scenario:
        return self.workload.with_plan(self.chosen)

    @property
    def analysis(self) -> DrawnReport:
        return get_analysis(self.app, self.shown.row)


COLOURS = {axis: f"--{axis}_comm_exposed" for axis in ("tp", "cp", "ep", "dp", "pp")}


def step(asked: Asked) -> Figure:
    return step_time_figure(asked.view.plans)


def memory(asked: Asked) -> Figure:
    return memory_figure(asked.view.plans, asked.view.limit_gib, asked.view.capacity_gib)


def space(asked: Asked) -> Figure:
    key = f"{asked.shown.row.id}.{asked.shown.row.attempt}"
    dots = asked.searched.find(key)
    if dots is None:
        workload = asked.workload
        dots = run_bounded_search(asked.app, lambda progress: search_dots(workload, progress))
        asked.searched.keep(key, dots)
    return space_figure(space_of(asked.view, dots))


def mesh(asked: Asked) -> Figure:
    plan, cluster = asked.chosen, asked.workload.scenario.cluster
    by = asked.by if asked.by in AXES else next(iter(axes_of(plan)))
    return mesh_figure(plan, cluster.num_devices, cluster.devices_per_node, by)


def roofline(asked: Asked) -> Figure:
    scenario = asked.scenario
    points = [
        Point(one.name, one.intensity, one.flops_per_s, one.seconds, one.shape)
        for one in list_operations(scenario)
    ]
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    return roofline_figure(points, device, [scenario.training.precision])


def collectives(asked: Asked) -> Figure:
    scenario = asked.scenario
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    transfers = [
        Transfer(
            AXES.get(one.axis, one.axis),
            one.message_bytes,
            one.bus_bytes_per_s,
            f"{one.kind} over {one.group_size} {'across' if one.crosses_nodes else 'inside'} nodes",
            COLOURS.get(one.axis, "--host_and_other"),
        )
        for one in list_messages(scenario)
    ]
    links = [
        ("inside the node", device.intra_node_bytes_per_s),
        ("between nodes", device.inter_node_bytes_per_s),
    ]
    return collectives_figure(transfers, links)


def measured_roofline(asked: Asked) -> Figure:
    analysis = asked.analysis
    named = next((rank.device for rank in analysis.ranks if rank.device), None)
    figure = measured_roofline_figure(analysis.drawing.points, find_device(named))
    if figure is None:
        raise NotFoundError("operation with shapes in traces of session", asked.shown.row.id)
    return figure


def measured_collectives(asked: Asked) -> Figure:
    figure = measured_collectives_figure(asked.analysis.collectives)
    if figure is None:
        raise NotFoundError("collective with a size in traces of session", asked.shown.row.id)
    return figure


def ranks(asked: Asked) -> Figure:
    return terms_figure(asked.analysis.ranks)


def timeline(asked: Asked) -> Figure:
    strips = asked.analysis.drawing.strips
    if not strips:
        raise NotFoundError("timeline in traces of session", asked.shown.row.id)
    return timeline_figure(strips)


def lateness(asked: Asked) -> Figure:
    measured = asked.analysis.drawing.lateness
    if measured is None:
        raise NotFoundError("collective that two ranks share in traces of session", asked.shown.row.id)
    return lateness_figure(measured)


FIGURES: Mapping[str, Callable[[Asked], Figure]] = {
    "step": step,
    "memory": memory,
    "space": space,
    "mesh": mesh,
    "roofline": roofline,
    "collectives": collectives,
    "measured-roofline": measured_roofline,
    "measured-collectives": measured_collectives,
    "ranks": ranks,
    "timeline": timeline,
    "lateness": lateness,
}
