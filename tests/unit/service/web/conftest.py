"""Sessions that pages show."""

from typing import Any

import pytest

from service.jobs.model import COMPLETED
from tests.unit.service.served import Served


@pytest.fixture
def id(served: Served, report: dict[str, Any]) -> str:
    """A session that is done."""
    made = served.submit()
    served.end(made, COMPLETED, report=report, verdict=report["verdict"], speedup=1.5, bottleneck="compute")
    return made
