"""/sessions/{id}/schedule: the simulated pipeline of today's plan above that of a proposal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Id, Reader, run_bounded_search
from service.api.state import AppState
from service.errors import NotFoundError
from service.render.text import gib, percent, seconds
from service.render.view import Planned, View, get_view
from service.web.rendering import PageRoute, figure_answer, page
from service.web.session_view import SessionPage
from tools.cost.calibration import Calibration
from tools.cost.memory import GIB
from tools.cost.schedule import KINDS, SimulatedStep, simulate
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
MAX_MEMORY_POINTS = 4000
"""Per stage: more cannot be told apart on a screen."""


@dataclass(frozen=True)
class Simulated:
    """A plan with its simulated step."""

    plan: Planned
    step: SimulatedStep

    @property
    def summary(self) -> str:
        step = self.step
        parts = [f"{step.stages} stages" if step.stages > 1 else "one stage, no pipeline"]
        if step.stages > 1:
            parts += (
                [step.schedule, f"{self.plan.plan.vpp} chunks per stage"]
                if self.plan.plan.vpp > 1
                else [step.schedule]
            )
        return ", ".join(
            [*parts, f"{step.micro_batches} micro-batch{'es' if step.micro_batches > 1 else ''}"]
        )

    @property
    def says(self) -> str:
        """Makespan beside the prediction."""
        predicted_s = self.plan.prediction.step_time_s
        if self.step.simulated_micro_batches < self.step.micro_batches:
            first = self.step.simulated_micro_batches
            return f"the first {first} of {self.step.micro_batches} micro-batches are simulated"
        off = round(self.step.makespan_s / predicted_s - 1, 3) + 0.0
        return f"{seconds(self.step.makespan_s)} simulated, {seconds(predicted_s)} predicted ({off:+.1%})"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Stage, share of the pipeline's time in which it works, peak memory."""
        pairs = zip(self.step.busy_ratio, self.step.peak_bytes, strict=True)
        return [(str(stage), percent(busy), gib(peak / GIB)) for stage, (busy, peak) in enumerate(pairs)]


router = APIRouter(prefix="/sessions/{id}/schedule", route_class=PageRoute)


@router.get("")
def show(id: Id, request: Request, app: AppDep, caller: Reader, plan: str = "") -> Response:
    row = app.sessions.get(caller, id)
    view = get_view(row, "there is nothing to simulate yet")
    proposals = {planned.key: planned for planned in view.proposals}
    chosen = proposals.get(plan or next(iter(proposals), ""))
    if chosen is None:
        raise NotFoundError("plan", plan)
    shown = [*(planned for planned in view.plans if not planned.proposal), chosen]
    return page(
        request,
        "session_schedule",
        caller,
        session=SessionPage(row, view),
        tab="schedule",
        simulated=[_simulated(app, view, planned) for planned in shown],
        chosen=chosen.key,
        legend=LEGEND,
    )


@router.get("/{key}")
def get_events(id: Id, key: str, request: Request, app: AppDep, caller: Reader) -> Response:
    """What the page draws: columns of events, and steps of memory per stage."""
    view = get_view(app.sessions.get(caller, id), "there is nothing to simulate yet")
    planned = next((planned for planned in view.plans if planned.key == key), None)
    if planned is None:
        raise NotFoundError("plan", key)
    return figure_answer(request, _drawing(_simulated(app, view, planned).step, view))


def _simulated(app: AppState, view: View, planned: Planned) -> Simulated:
    scenario, calibration = view.workload.with_plan(planned.plan), view.workload.calibration
    return Simulated(planned, run_bounded_search(app, lambda _: _cached_step(_Key(scenario, calibration))))


class _Key:
    """Equal for the same scenario: a page and its drawing simulate once."""

    def __init__(self, scenario: Scenario, calibration: Calibration) -> None:
        self.scenario, self.calibration = scenario, calibration
        self._text = scenario.model_dump_json() + repr(calibration.shifts)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text


@lru_cache(maxsize=16)
def _cached_step(key: _Key) -> SimulatedStep:
    return simulate(key.scenario, key.calibration)


def _drawing(step: SimulatedStep, view: View) -> dict[str, object]:
    return {
        "stages": step.stages,
        "makespan_s": step.makespan_s,
        "kinds": KINDS,
        "stage": [event.stage for event in step.events],
        "kind": [KINDS.index(event.kind) for event in step.events],
        "micro_batch": [event.micro_batch for event in step.events],
        "chunk": [event.chunk for event in step.events],
        "start_s": [round(event.start_s, 6) for event in step.events],
        "end_s": [round(event.end_s, 6) for event in step.events],
        "memory": [_steps(held) for held in step.held_bytes],
        "limit_gib": view.limit_gib,
        "capacity_gib": view.capacity_gib,
    }


def _steps(held: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Times and GiB; of many the highest of each stretch, so that no peak is lost."""
    stretch = max(len(held) // MAX_MEMORY_POINTS, 1)
    starts = [*range(0, len(held), stretch), len(held)]
    peaks = [max(held[start:end], key=lambda point: point[1]) for start, end in pairwise(starts)]
    return [[round(at_s, 6) for at_s, _ in peaks], [round(most / GIB, 3) for _, most in peaks]]
