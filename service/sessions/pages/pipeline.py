"""/sessions/{id}/schedule: the simulated pipeline of today's plan above that of a proposal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from fastapi import APIRouter, Response

from service.errors import NotFoundError
from service.http.deps import Id
from service.render.text import gib, percent, seconds
from service.render.view import PlanView, ReportView
from service.sessions.pages.plans import find_plan
from service.sessions.pages.view import open_session
from service.sessions.pages.workbench import YOURS, workbench_of
from service.web.errors import PageRoute
from service.web.rendering import Page, ReaderPage
from tools.model.calibration import Calibration
from tools.model.schedule import KINDS, SimulatedStep, simulate
from tools.physics.memory import GIB
from tools.scenario import Scenario

LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "weights": "weight gradients",
    "send": "transfer to the next stage",
    "reduce": "gradients reduced, exposed",
    "optimizer": "optimizer",
    "other": "host and other",
}
LACKING = "there is nothing to simulate yet"
MAX_MEMORY_POINTS = 4000
"""Per stage: more cannot be told apart on a screen."""

router = APIRouter(prefix="/sessions/{id}/schedule", route_class=PageRoute)


@dataclass(frozen=True)
class Simulated:
    """A plan with its simulated step."""

    plan: PlanView
    step: SimulatedStep

    @property
    def summary(self) -> str:
        step, vpp = self.step, self.plan.plan.vpp
        parts = [f"{step.stages} stages", step.schedule] if step.stages > 1 else ["one stage, no pipeline"]
        if step.stages > 1 and vpp > 1:
            parts.append(f"{vpp} chunks per stage")
        batches = f"{step.micro_batches} micro-batch{'es' if step.micro_batches > 1 else ''}"
        return ", ".join([*parts, batches])

    @property
    def message(self) -> str:
        """Makespan beside the prediction."""
        step, predicted_s = self.step, self.plan.prediction.step_time_s
        if step.simulated_micro_batches < step.micro_batches:
            first = step.simulated_micro_batches
            return f"the first {first} of {step.micro_batches} micro-batches are simulated"
        off = round(step.makespan_s / predicted_s - 1, 3) + 0.0
        return f"{seconds(step.makespan_s)} simulated, {seconds(predicted_s)} predicted ({off:+.1%})"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Stage, share of the pipeline's time in which it works, peak memory."""
        pairs = zip(self.step.busy_ratio, self.step.peak_bytes, strict=True)
        return [(str(stage), percent(busy), gib(peak / GIB)) for stage, (busy, peak) in enumerate(pairs)]


@router.get("")
def show(id: Id, page: ReaderPage, plan: str = "") -> Response:
    session, view = open_session(page, id, LACKING)
    proposals = {planned.key: planned for planned in view.proposals}
    chosen = proposals.get(plan or next(iter(proposals), ""))
    if chosen is None:
        raise NotFoundError("plan", plan)
    shown = [*(planned for planned in view.plans if not planned.proposal), chosen]
    simulated = [Simulated(planned, _simulate(page, view, planned)) for planned in shown]
    return page(
        "session_schedule",
        session=session,
        tab="schedule",
        simulated=simulated,
        chosen=chosen.key,
        legend=LEGEND,
    )


@router.get("/{key}")
def get_events(id: Id, key: str, page: ReaderPage) -> Response:
    """What the page draws: columns of events, and steps of memory per stage.

    `yours` is the plan that the address states, as of the workbench.
    """
    session, view = open_session(page, id, LACKING)
    stated = dict(page.request.query_params) | ({} if key == YOURS else {"plan": key})
    planned = workbench_of(
        view, lambda key: find_plan(page.app, session.row, view, key), stated
    ).chosen.planned
    step = _simulate(page, view, planned)

    def memory_steps(held: Sequence[tuple[float, float]]) -> list[list[float]]:
        """Times and GiB; of many the highest of each stretch, so that no peak is lost."""
        stretch = max(len(held) // MAX_MEMORY_POINTS, 1)
        starts = [*range(0, len(held), stretch), len(held)]
        peaks = [max(held[start:end], key=lambda point: point[1]) for start, end in pairwise(starts)]
        return [[round(at_s, 6) for at_s, _ in peaks], [round(most / GIB, 3) for _, most in peaks]]

    return page.figure(
        {
            "stages": step.stages,
            "makespan_s": step.makespan_s,
            "kinds": KINDS,
            "stage": [event.stage for event in step.events],
            "kind": [KINDS.index(event.kind) for event in step.events],
            "micro_batch": [event.micro_batch for event in step.events],
            "chunk": [event.chunk for event in step.events],
            "start_s": [round(event.start_s, 6) for event in step.events],
            "end_s": [round(event.end_s, 6) for event in step.events],
            "memory": [memory_steps(held) for held in step.held_bytes],
            "limit_gib": view.workload.limit_gib,
            "capacity_gib": view.workload.capacity_gib,
        }
    )


def _simulate(page: Page, view: ReportView, planned: PlanView) -> SimulatedStep:
    scenario, calibration = view.workload.with_plan(planned.plan), view.workload.calibration
    key = scenario.model_dump_json() + repr(calibration.shifts)
    return page.app.run_search(lambda _: _simulated(_Simulation(key, scenario, calibration)))


@dataclass(frozen=True)
class _Simulation:
    """Equal for the same scenario: a page and its drawing simulate once."""

    key: str
    scenario: Scenario = field(compare=False)
    calibration: Calibration = field(compare=False)


@lru_cache(maxsize=16)
def _simulated(simulation: _Simulation) -> SimulatedStep:
    return simulate(simulation.scenario, simulation.calibration)
