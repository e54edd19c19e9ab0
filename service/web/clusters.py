"""/clusters: what a cluster's own runs and probes say about it."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Reader
from service.api.state import AppState
from service.auth import Caller
from service.errors import NotFoundError
from service.measurements import ClusterState, cluster_names, find_cluster
from service.render.plotly import PALETTE, Figure, frame, label
from service.render.text import stamp
from service.web.accuracy import Pair, accuracy_figure
from service.web.rendering import PageRoute, figure_answer, page
from tools.calibrate.runs import Run
from tools.cost.constants import definitions

BEFORE, AFTER = "without its runs", "with its other runs"

router = APIRouter(prefix="/clusters", route_class=PageRoute)
Name = Annotated[str, Path(max_length=200)]


@router.get("")
def show(request: Request, app: AppDep, caller: Reader) -> Response:
    with app.database.read() as conn:
        names = cluster_names(conn, caller.tenant)
        states = [find_cluster(conn, caller.tenant, name) for name in names]
    return page(request, "clusters", caller, clusters=[state for state in states if state])


@router.get("/{name}")
def show_cluster(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    state = _get(app, caller, name)
    learned = state.learned
    memory = learned.calibration.cluster.memory_factor if learned.calibration.cluster else 1.0
    meanings = {definition.name: definition.meaning for definition in definitions()}
    return page(request, "cluster", caller, cluster=state, learned=learned, memory=memory, meanings=meanings)


@router.get("/{name}/figure")
def get_figure(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    """Predicted against measured, before and after."""
    checked = _get(app, caller, name).learned.checked
    if not checked:
        raise NotFoundError("measurement of", name)
    before = [Pair(run.measured_s, run.before_s, BEFORE, run.id) for run in checked]
    after = [Pair(run.measured_s, run.after_s, AFTER, run.id) for run in checked]
    return figure_answer(request, accuracy_figure([*before, *after]))


@router.get("/{name}/probes")
def get_probes(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    probes = _get(app, caller, name).probes
    if not probes:
        raise NotFoundError("probe of", name)
    return figure_answer(request, probes_figure(probes))


def _get(app: AppState, caller: Caller, name: str) -> ClusterState:
    with app.database.read() as conn:
        state = find_cluster(conn, caller.tenant, name)
    if state is None:
        raise NotFoundError("cluster", name)
    return state


def probes_figure(probes: Sequence[tuple[float, Run]]) -> Figure:
    """Each constant over its value in the first probe: what drifts shows."""
    names = sorted({name for _, run in probes for name in run.measured.constants})
    data = []
    for number, name in enumerate(names):
        own = [(at, run.measured.constants[name]) for at, run in probes if name in run.measured.constants]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(name),
                "x": [stamp(at) for at, _ in own],
                "y": [value / own[0][1] for _, value in own],
                "text": [f"{value:.4g}" for _, value in own],
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
                "line": {"color": PALETTE[number % len(PALETTE)]},
            }
        )
    return {"data": data, "layout": frame("", "over the first probe", 360, showlegend=True)}
