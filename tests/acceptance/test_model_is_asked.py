"""With a model configured, every way to use the product asks it: the endpoint counts, the report names it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.model import NAME, Model
from tests.acceptance.product import WORKLOAD, asap, serving

QUESTIONS = {"find_cause", "propose_plans", "revise_worklist", "explain"}
"""Asked in every session."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    return {"database_url": str(request.getfixturevalue("postgres_url"))}


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def assert_by_the_model(report: dict[str, Any], model: Model) -> None:
    """What it was asked it has answered, and what it wrote stands in the report under its name."""
    assert set(model.answered) >= QUESTIONS
    assert report["reasoner"] == NAME
    assert set(report["authors"].values()) == {NAME}
    assert report["usage"]["answered"] == model.answered.total()
    assert report["usage"]["fell_back"] == 0
    assert report["incidents"] == []


def test_a_rest_session_asks_the_model(tmp_path: Path, database: dict[str, str], model: Model) -> None:
    with serving(tmp_path, **database, **model.settings) as server:
        report = server.report(server.submit())
        assert server.metric("asap_llm_tokens_total") > 0
        assert server.metric("asap_unexpected_errors_total") == 0
    assert_by_the_model(report, model)
    assert model.looked_up.total() > 0


def test_a_kept_command_asks_the_model(tmp_path: Path, model: Model) -> None:
    done = asap(
        tmp_path, "optimize", "--session", "kept", "--json", "-", given=json.dumps(WORKLOAD), **model.settings
    )
    assert done.returncode == 0, done.stderr
    assert_by_the_model(json.loads(done.stdout), model)
