"""Language models at scripted and real endpoints; every one is closed after its test."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from graph.agents import LanguageModel
from graph.model import Endpoint
from tests.integration.llm.scripted_server import ScriptedServer
from tests.integration.llm.smollm import lacking, serving

MakeModel = Callable[..., LanguageModel]


@pytest.fixture
def pauses() -> list[float]:
    """The seconds that a model of `model_at` would have slept; nobody really waits."""
    return []


@pytest.fixture
def model_at(pauses: list[float]) -> Iterator[MakeModel]:
    """Makes a language model at a server: `model_at(server, retries=1)`."""
    made: list[LanguageModel] = []

    def make(server: ScriptedServer | str, **settings: object) -> LanguageModel:
        url = server if isinstance(server, str) else server.base_url
        endpoint = replace(Endpoint(url, "scripted", timeout_s=10.0), **settings)  # type: ignore[arg-type]
        made.append(LanguageModel(endpoint, sleep=pauses.append))
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.fixture(scope="session")
def smollm() -> Iterator[str]:
    """The base URL of a real model, started once."""
    missing = lacking()
    if missing:
        pytest.skip(missing)
    with serving() as base_url:
        yield base_url
