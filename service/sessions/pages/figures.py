"""The figures of a session's page by name, from its report, its searched space and its traces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from fastapi import APIRouter, Response

from service.errors import NotFoundError
from service.http.deps import Id
from service.http.problems import ApiError
from service.http.state import AppState
from service.render.charts import Chart
from service.render.plan_figures import AXES, PlanDot, SearchedSpace, axes_of, mesh_chart, space_chart
from service.render.trace_figures import (
    RooflinePoint,
    Transfer,
    collectives_chart,
    lateness_chart,
    measured_collectives_chart,
    measured_roofline_chart,
    roofline_chart,
    terms_chart,
    timeline_chart,
)
from service.render.view import ReportView
from service.sessions.model import SessionRow
from service.sessions.pages.plans import get_explored
from service.sessions.pages.view import open_session
from service.traces.store import get_trace
from service.traces.uploads import find_reference
from service.traces.usecases import Traces
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage
from tools.hardware import get_device
from tools.model.operations import list_messages, list_operations
from tools.model.predict import Prediction
from tools.physics.memory import GIB
from tools.recommend.words import short
from tools.scenario import Plan, Scenario
from tools.search.ranked import Ranked, front_of
from tools.trace.folder import find_trace_files
from tools.trace.rank_profile import find_device
from tools.trace.report import DrawnReport, analyse_folder

MAX_DOTS = 1200
MAX_FRONT = 200
RETRY_AFTER_S = 2
ABSENT = {
    "measured-roofline": "operation with shapes",
    "measured-collectives": "collective with a size",
    "timeline": "timeline",
    "lateness": "collective that two ranks share",
}
"""What traces lack if there is no such figure of them."""
NODES = ("inside nodes", "across nodes")
COLOURS = {axis: f"--{axis}_comm_exposed" for axis in ("tp", "cp", "ep", "dp", "pp")}

router = APIRouter(prefix="/sessions/{id}/figures", route_class=PageRoute)


@router.get("/{name}")
def get_figure(id: Id, name: str, page: ReaderPage, plan: str = "1", by: str = "") -> Response:
    """A chart of service/render/charts.py; colours are names of the stylesheet's custom properties."""
    draw = figures().get(name)
    if draw is None:
        raise NotFoundError("figure", name)
    session, view = open_session(page, id, "there is nothing to draw yet")
    figure = draw(FigureRequest(page.app, session.row, view, plan, by))
    if figure is None:
        raise NotFoundError(f"{ABSENT[name]} in traces of session", id)
    return page.figure(figure)


@dataclass(frozen=True)
class FigureRequest:
    app: AppState
    row: SessionRow
    view: ReportView
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
        """The report of `asap diagnose`, with what figures need."""
        traces = str(self.row.request.get("traces") or "")
        if not traces:
            raise NotFoundError("trace of session", self.row.id)
        return analysis_of(self.app, self.row.tenant, traces)


def figures() -> Mapping[str, Callable[[FigureRequest], Chart | None]]:
    """Every figure by its name in the address; of traces None if they do not have what it shows."""
    return {
        "space": space,
        "mesh": mesh,
        "roofline": roofline,
        "collectives": collectives,
        "measured-roofline": measured_roofline,
        "measured-collectives": lambda request: measured_collectives_chart(request.analysis.collectives),
        "ranks": lambda request: terms_chart(request.analysis.ranks),
        "timeline": timeline,
        "lateness": lateness,
    }


def space(request: FigureRequest) -> Chart:
    def dot(label: str, prediction: Prediction) -> PlanDot:
        return PlanDot(prediction.peak_memory_gib, prediction.step_time_s, label)

    def sample(ranked: Ranked, limit: int) -> list[PlanDot]:
        """At most this many, evenly spaced: more cannot be told apart."""
        count = len(ranked.step_time_s)
        rows = np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(int)).tolist()
        memory_gib, step_s = ranked.memory_bytes / GIB, ranked.step_time_s
        names = {row: short(ranked.plans.plan(row)) for row in rows}
        return [PlanDot(float(memory_gib[row]), float(step_s[row]), names[row]) for row in rows]

    view, plans = request.view, get_explored(request.app, request.row)
    others = [(f"{scored.origin}: {scored.summary}", scored.proposal) for scored in view.report.considered]
    today = [plan for plan in view.plans if not plan.proposal]
    return space_chart(
        SearchedSpace(
            plans=sample(plans, MAX_DOTS),
            front=sample(front_of(plans), MAX_FRONT),
            proposals=[dot(plan.summary, plan.prediction) for plan in view.proposals],
            today=[dot(f"{plan.name}: {plan.summary}", plan.prediction) for plan in today],
            considered=[dot(label, scored.prediction) for label, scored in others if scored],
            limit_gib=view.workload.limit_gib,
        )
    )


def mesh(request: FigureRequest) -> Chart:
    plan, cluster = request.plan, request.view.workload.scenario.cluster
    by = request.group_by if request.group_by in AXES else next(iter(axes_of(plan)))
    return mesh_chart(plan, cluster.num_devices, cluster.devices_per_node, by)


def roofline(request: FigureRequest) -> Chart:
    scenario = request.scenario
    points = [
        RooflinePoint(op.name, op.intensity, op.flops_per_s, op.seconds, op.shape)
        for op in list_operations(scenario, request.view.workload.calibration)
    ]
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    return roofline_chart(points, device, [scenario.training.precision])


def collectives(request: FigureRequest) -> Chart:
    scenario = request.scenario
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    transfers = [
        Transfer(
            AXES.get(message.axis, message.axis),
            message.message_bytes,
            message.bus_bytes_per_s,
            f"{message.kind} over {message.group_size} {NODES[message.crosses_nodes]}",
            COLOURS.get(message.axis, "--host_and_other"),
        )
        for message in list_messages(scenario, request.view.workload.calibration)
    ]
    links = [
        ("inside the node", device.intra_node_bytes_per_s),
        ("between nodes", device.inter_node_bytes_per_s),
    ]
    return collectives_chart(transfers, links)


def measured_roofline(request: FigureRequest) -> Chart | None:
    analysis = request.analysis
    device = find_device(next((rank.device for rank in analysis.ranks if rank.device), None))
    return measured_roofline_chart(analysis.drawing.points, device)


def timeline(request: FigureRequest) -> Chart | None:
    strips = request.analysis.drawing.strips
    return timeline_chart(strips) if strips else None


def lateness(request: FigureRequest) -> Chart | None:
    measured = request.analysis.drawing.lateness
    return None if measured is None else lateness_chart(measured)


def analysis_of(app: AppState, tenant: str, traces: str) -> DrawnReport:
    """`traces` is a folder, or an upload that has been analysed."""
    id = find_reference(traces)
    if not id:
        return app.run_search(lambda _: analyse_once(Path(traces))[0])
    with app.database.read() as conn:
        trace = get_trace(conn, tenant, id)
    if trace.analysis is None:
        if trace.error:
            raise NotFoundError("analysis of trace", id)
        app.get(Traces).analyses.ensure_started(trace)
        wait = {"Retry-After": str(RETRY_AFTER_S)}
        raise ApiError("unavailable", "the traces are being analysed; ask again", headers=wait)
    return DrawnReport.model_validate(trace.analysis)


def analyse_once(folder: Path) -> tuple[DrawnReport, bytes]:
    """The report of a folder on the server and its ranks at a glance, kept until a file of it changes."""
    files = find_trace_files(folder)
    return _analysed(folder, tuple((file, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=8)
def _analysed(folder: Path, _files: tuple[tuple[Path, int], ...]) -> tuple[DrawnReport, bytes]:
    analysis = analyse_folder(folder)
    return analysis.drawn(), analysis.overview()
