"""Pages are asked for as the API is: the same application over a real database; see service_api/served.py."""

from tests.unit.service_api.conftest import (  # noqa: F401 - fixtures
    empty_data,
    report,
    scenario,
    serve,
    served,
)
