"""The figures of a session by the names that pages ask for."""

from collections.abc import Callable, Mapping

from service.web import plan_figures, trace_figures
from service.web.asked import Asked
from service.web.figures.canvas import Figure

FIGURES: Mapping[str, Callable[[Asked], Figure]] = {
    "step": plan_figures.step,
    "memory": plan_figures.memory,
    "space": plan_figures.space,
    "mesh": plan_figures.mesh,
    "roofline": plan_figures.roofline,
    "collectives": plan_figures.collectives,
    "measured-roofline": trace_figures.roofline,
    "measured-collectives": trace_figures.collectives,
    "ranks": trace_figures.ranks,
    "timeline": trace_figures.timeline,
    "lateness": trace_figures.lateness,
}
