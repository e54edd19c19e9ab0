"""The figures of a session's page by name, from its report, its searched space and its traces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from fastapi import APIRouter, Request, Response

from service.api.deps import AppDep, Id, Reader, run_bounded_search
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
    mesh_figure,
    space_figure,
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
from service.render.view import Planned, View, get_view
from service.uploads import find_reference
from service.web.plans import get_explored
from service.web.rendering import PageRoute, figure_answer
from tools.cost.memory import GIB
from tools.cost.operations import list_messages, list_operations
from tools.cost.predict import Prediction
from tools.hardware import get_device
from tools.recommend.words import short
from tools.scenario import Plan, Scenario
from tools.search.ranked import Ranked, front_of
from tools.search.space import decode_row
from tools.trace.rank_profile import find_device
from tools.trace.report import DrawnReport, analyse_folder

MAX_DOTS = 1200
MAX_FRONT = 200


def _sample(ranked: Ranked, limit: int) -> list[Dot]:
    """At most this many, evenly spaced: more cannot be told apart."""
    count = len(ranked.step_time_s)
    rows = np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(int)).tolist()
    return [
        Dot(
            float(ranked.memory_bytes[row]) / GIB,
            float(ranked.step_time_s[row]),
            short(Plan.model_validate(decode_row(ranked.plans, row))),
        )
        for row in rows
    ]


def _dot(label: str, prediction: Prediction) -> Dot:
    return Dot(prediction.peak_memory_gib, prediction.step_time_s, label)


def _baseline_dot(plan: Planned) -> Dot:
    return _dot(f"{plan.name}: {plan.summary}", plan.prediction)


RETRY_AFTER_S = 2


def get_analysis(app: AppState, row: SessionRow) -> DrawnReport:
    """The report of `asap diagnose`, with what figures need; NotFoundError if there are no traces."""
    traces = str((row.request or {}).get("traces") or "")
    if not traces:
        raise NotFoundError("trace of session", row.id)
    return analysis_of(app, row.tenant, traces)


def analysis_of(app: AppState, tenant: str, traces: str) -> DrawnReport:
    """Of an upload or a folder."""
    if id := find_reference(traces):
        return _of_upload(app, tenant, id)
    return run_bounded_search(app, lambda _: _of_folder(traces, _written(Path(traces))))


def _of_upload(app: AppState, tenant: str, id: str) -> DrawnReport:
    with app.database.read() as conn:
        trace = get_trace(conn, tenant, id)
    if trace.analysis is None:
        if trace.error:
            raise NotFoundError("analysis of trace", id)
        app.traces.analyses.ensure_started(trace)
        wait = {"Retry-After": str(RETRY_AFTER_S)}
        raise ApiError("unavailable", "the traces are being analysed; ask again", headers=wait)
    return DrawnReport.model_validate(trace.analysis)


def _written(folder: Path) -> tuple[tuple[Path, int], ...]:
    """Its files, and when each was written."""
    from tools.trace.folder import find_trace_files

    return tuple((file, file.stat().st_mtime_ns) for file in find_trace_files(folder))


@lru_cache(maxsize=8)
def _of_folder(folder: str, _files: tuple[tuple[Path, int], ...]) -> DrawnReport:
    """Cached until a file of the folder changes."""
    return analyse_folder(Path(folder)).drawn()


@dataclass(frozen=True)
class FigureRequest:
    app: AppState
    row: SessionRow
    view: View
    plan_key: str
    """`today`, or the rank of a proposal."""
    group_by: str

    @property
    def plan(self) -> Plan:
        plan = self.view.find_plan(self.plan_key)
        if plan is None:
            raise NotFoundError("plan", self.plan_key)
        return plan

    @property
    def scenario(self) -> Scenario:
        return self.view.workload.with_plan(self.plan)

    @property
    def analysis(self) -> DrawnReport:
        return get_analysis(self.app, self.row)


COLOURS = {axis: f"--{axis}_comm_exposed" for axis in ("tp", "cp", "ep", "dp", "pp")}


def space(request: FigureRequest) -> Figure:
    view, plans = request.view, get_explored(request.app, request.row)
    considered = [
        (f"{scored.origin}: {scored.summary}", scored.proposal) for scored in view.report.considered
    ]
    return space_figure(
        Space(
            plans=_sample(plans, MAX_DOTS),
            front=_sample(front_of(plans), MAX_FRONT),
            proposals=[_dot(plan.summary, plan.prediction) for plan in view.proposals],
            today=[_baseline_dot(plan) for plan in view.plans if not plan.proposal],
            considered=[_dot(label, scored.prediction) for label, scored in considered if scored],
            limit_gib=view.limit_gib,
        )
    )


def mesh(request: FigureRequest) -> Figure:
    plan, cluster = request.plan, request.view.workload.scenario.cluster
    by = request.group_by if request.group_by in AXES else next(iter(axes_of(plan)))
    return mesh_figure(plan, cluster.num_devices, cluster.devices_per_node, by)


def roofline(request: FigureRequest) -> Figure:
    scenario = request.scenario
    points = [
        Point(operation.name, operation.intensity, operation.flops_per_s, operation.seconds, operation.shape)
        for operation in list_operations(scenario, request.view.workload.calibration)
    ]
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    return roofline_figure(points, device, [scenario.training.precision])


def collectives(request: FigureRequest) -> Figure:
    scenario = request.scenario
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    transfers = [
        Transfer(
            AXES.get(message.axis, message.axis),
            message.message_bytes,
            message.bus_bytes_per_s,
            f"{message.kind} over {message.group_size} "
            f"{'across' if message.crosses_nodes else 'inside'} nodes",
            COLOURS.get(message.axis, "--host_and_other"),
        )
        for message in list_messages(scenario, request.view.workload.calibration)
    ]
    links = [
        ("inside the node", device.intra_node_bytes_per_s),
        ("between nodes", device.inter_node_bytes_per_s),
    ]
    return collectives_figure(transfers, links)


def measured_roofline(request: FigureRequest) -> Figure:
    analysis = request.analysis
    named = next((rank.device for rank in analysis.ranks if rank.device), None)
    figure = measured_roofline_figure(analysis.drawing.points, find_device(named))
    if figure is None:
        raise NotFoundError("operation with shapes in traces of session", request.row.id)
    return figure


def measured_collectives(request: FigureRequest) -> Figure:
    figure = measured_collectives_figure(request.analysis.collectives)
    if figure is None:
        raise NotFoundError("collective with a size in traces of session", request.row.id)
    return figure


def ranks(request: FigureRequest) -> Figure:
    return terms_figure(request.analysis.ranks)


def timeline(request: FigureRequest) -> Figure:
    strips = request.analysis.drawing.strips
    if not strips:
        raise NotFoundError("timeline in traces of session", request.row.id)
    return timeline_figure(strips)


def lateness(request: FigureRequest) -> Figure:
    measured = request.analysis.drawing.lateness
    if measured is None:
        raise NotFoundError("collective that two ranks share in traces of session", request.row.id)
    return lateness_figure(measured)


FIGURES: Mapping[str, Callable[[FigureRequest], Figure]] = {
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


router = APIRouter(prefix="/sessions/{id}/figures", route_class=PageRoute)


@router.get("/{name}")
def get_figure(
    id: Id, name: str, request: Request, app: AppDep, caller: Reader, plan: str = "1", by: str = ""
) -> Response:
    """Plotly's JSON; colours are names of the stylesheet's custom properties."""
    if name not in FIGURES:
        raise NotFoundError("figure", name)
    row = app.sessions.get(caller, id)
    view = get_view(row, "there is nothing to draw yet")
    drawn = FIGURES[name](FigureRequest(app, row, view, plan, by))
    return figure_answer(request, drawn)
