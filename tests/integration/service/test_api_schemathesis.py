"""Whatever is sent that the description allows, or forbids: an answer that is described, never a failure.

Driven by hypothesis directly: schemathesis' own pytest plugin does not go with this pytest.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, BaseSchema, Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.integration.service.api_process import api_process

EXAMPLES = 6
"""For each operation and mode: what `make test` has time for."""
MANY_EXAMPLES = 100
MIN_OPERATIONS = 30


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    folder: Path = tmp_path_factory.mktemp("api")
    with api_process(folder, "--role", "api", requests_per_minute=1_000_000, request_s=120) as server:
        yield schemathesis.openapi.from_url(f"{server.address}/openapi.json")


def test_no_request_makes_the_server_fail(described: BaseSchema) -> None:
    check_every_operation(described, EXAMPLES)


@pytest.mark.slow
def test_no_request_of_many_makes_the_server_fail(described: BaseSchema) -> None:
    check_every_operation(described, MANY_EXAMPLES)


def check_every_operation(described: BaseSchema, examples: int) -> None:
    operations = [found.ok() for found in described.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) >= MIN_OPERATIONS
    failures = [
        f"{operation.label}, {mode.value}: {failure}"
        for operation in operations
        for mode in GenerationMode
        if (failure := find_failure(operation, mode, examples))
    ]
    assert not failures, "\n\n".join(failures)


def find_failure(
    operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, examples: int
) -> str | None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Case[Any]) -> None:
        # A body may fit its schema and still be no workload: only the tools can tell.
        case.call_and_validate(excluded_checks=[positive_data_acceptance], timeout=60)

    try:
        call()
    except Unsatisfiable:  # nothing of it can be wrong
        return None
    except FailureGroup as failed:
        return "\n".join(f"{failure.title}: {failure.message}" for failure in failed.exceptions)
    return None
