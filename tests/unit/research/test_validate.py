"""Error figures by hand, the files they are written to, and the plot."""

import numpy as np
import pytest

from research.published import REPO, Measurement
from research.validate import (
    DATA,
    PLOT,
    Outcome,
    mean_over_sources,
    memory_score,
    report,
    to_json,
)
from tests.unit.physics.scenes import scene
from tools.model.peaks import PeakReading
from tools.model.validation import find_validation
from tools.physics.memory import GIB, read_bytes

MEASURED = np.array([1.0, 2.0, 4.0, 8.0])
PREDICTED = np.array([1.05, 1.8, 4.0, 12.0])
OUTCOME = Outcome(MEASURED, PREDICTED, PREDICTED * 0.9, PREDICTED * 1.1)


def test_every_source_counts_the_same_in_the_mean_over_sources() -> None:
    sources = np.array(["one", "one", "one", "other"])
    mean = mean_over_sources(OUTCOME, np.ones(4, dtype=np.bool_), sources, "section", "all")
    assert mean.mape == pytest.approx(((0.05 + 0.1 + 0.0) / 3 + 0.5) / 2)
    assert mean.rows == 4


def test_memory_is_scored_over_published_peaks_and_fitting_over_all_rows() -> None:
    """What each peak is compared with, the framework's allocator shows: less than the device has in use."""
    fitting, too_large = scene("llama-3.1-8b", devices=8), scene("llama-3.1-8b", devices=1)
    shown = float(read_bytes(fitting.x, fitting.settings, "reserved")) / GIB
    low, high = (PeakReading(shown / ratio, "reserved", "fullest") for ratio in (1.1, 0.9))
    read = [(fitting, low), (fitting, None), (fitting, high), (too_large, None)]
    rows = [Measurement("", "", "", s.scenario, frozenset(), 1.0, peak) for s, peak in read]
    memory = memory_score("runs", rows)
    assert (memory.rows, memory.fits_share) == (2, 0.75)
    assert memory.mape == pytest.approx(0.1)


def test_the_page_is_rendered_from_the_data_that_the_package_ships() -> None:
    validation = find_validation()
    assert validation is not None
    assert report(validation, PLOT) == (REPO / "docs" / "validation.md").read_text()
    assert to_json(validation) == DATA.read_text()
    assert len(validation.points) == sum(
        row.rows for row in validation.rows if row.section == "By source, each left out whole"
    )
