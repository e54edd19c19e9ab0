"""Figures of a session's page are of the model that its predictions are of."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from service.render.charts import Chart
from service.sessions.pages.figures import FigureRequest, collectives, roofline
from tests.unit.service.served import SCENARIO
from tools.model.calibration import calibrated_to, shipped_calibration
from tools.physics.encode import encode
from tools.recommend.optimize import workload_of
from tools.scenario import parse_scenario


def drawn(draw: Callable[[FigureRequest], Chart], measured: dict[str, float]) -> str:
    """The figure of a session whose cluster has these constants."""
    scenario = parse_scenario(SCENARIO)
    calibration = calibrated_to(shipped_calibration(), encode([scenario])[1], measured)
    view = SimpleNamespace(workload=workload_of(scenario, calibration))
    request = SimpleNamespace(scenario=scenario, view=view)
    return str(draw(cast(FigureRequest, request)))


@pytest.mark.parametrize(
    ("draw", "constant"), [(roofline, "gemm_efficiency"), (collectives, "fast_link_efficiency")]
)
def test_a_calibrated_cluster_moves_its_figures(
    draw: Callable[[FigureRequest], Chart], constant: str
) -> None:
    assert drawn(draw, {constant: 0.5}) != drawn(draw, {})
