"""The served description: complete, with examples that work."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from service.app import create_app, make_app_state
from service.db.engine import open_database
from service.http.deps import Public
from service.http.openapi import describe
from service.http.problems import MEDIA_TYPE
from service.sessions.dispatch import session_queue
from service.settings import Settings
from tests.unit.service.served import Served

METHODS = ("get", "put", "post", "delete", "patch")
OPEN = ("/healthz", "/readyz")


@pytest.fixture(scope="module")
def document(empty_data: Path) -> Iterator[dict[str, Any]]:
    settings = Settings(data_dir=empty_data)
    with closing(open_database(settings.database)) as database:
        state = make_app_state(settings, database, session_queue(database))
        yield describe(create_app(state))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def test_it_is_openapi_3_1_at_both_addresses(served: Served, document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    for path in ("/openapi.json", "/v1/openapi.json"):
        assert served.client.get(path).json() == document


def test_every_operation_says_what_it_is_for_and_how_it_fails(document: dict[str, Any]) -> None:
    problem = document["components"]["responses"]["Problem"]["content"]
    assert list(problem) == [MEDIA_TYPE]
    for method, path, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["tags"], (method, path)
        assert operation["responses"]["422"] == {"$ref": "#/components/responses/Problem"}
        assert ("security" in operation) is (path not in OPEN)


def test_every_schema_is_one_and_its_examples_fit(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    examples = 0
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)
        whole = {**schema, "components": {"schemas": schemas}}
        for example in schema.get("examples", []):
            jsonschema_rs.Draft202012Validator(whole).validate(example)
            examples += 1
    assert examples >= 8
    assert schemas["Problem"]["examples"]


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/predict", "StatedScenario"), ("/v1/sessions", "SessionCreate"), ("/v1/traces", "TraceCreate")],
)
def test_an_example_can_be_sent_as_it_is(
    served: Served, document: dict[str, Any], path: str, name: str
) -> None:
    for example in document["components"]["schemas"][name]["examples"]:
        assert served.client.post(path, json=example).is_success


def test_nothing_leaves_the_server_that_a_shape_does_not_name() -> None:
    shapes = Public.__subclasses__()
    assert shapes
    assert {shape.model_config["extra"] for shape in shapes} == {"ignore"}
