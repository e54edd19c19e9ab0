"""The served description: complete, with examples that work, and the same as what the client speaks."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_origin

import jsonschema_rs
import pytest
from pydantic import TypeAdapter

from asap_client import calls as endpoints
from asap_client import models, schedules
from asap_client.calls import Call
from asap_client.operations import Follower
from service.api.app import create_app, describe, make_app_state
from service.api.errors import MEDIA_TYPE
from service.db.engine import open_database
from service.schemas import Public
from service.settings import Settings
from service.web.app import add_pages
from service.worker.jobs import session_queue
from tests.unit.service.served import Served
from tools.scenario.spec import TRAINING_OPTIONS

METHODS = ("get", "put", "post", "delete")
OPEN = ("/healthz", "/readyz")


@pytest.fixture(scope="module")
def document(empty_data: Path) -> Iterator[dict[str, Any]]:
    settings = Settings(data_dir=empty_data)
    with closing(open_database(settings.database)) as database:
        state = make_app_state(settings, database, session_queue(database))
        yield describe(create_app(state, add_pages))


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


def test_nothing_of_the_framework_s_own_errors_is_left(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in json.dumps(document)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))):
        place: Any = document
        for part in reference.split("/"):
            place = place[part]


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
    [("/v1/predict", "ScenarioCreate"), ("/v1/sessions", "SessionCreate"), ("/v1/traces", "TraceCreate")],
)
def test_an_example_can_be_sent_as_it_is(
    served: Served, document: dict[str, Any], path: str, name: str
) -> None:
    for example in document["components"]["schemas"][name]["examples"]:
        assert served.client.post(path, json=example).is_success


BODIES = ("body", "case", "decision", "digests", "mark", "plan", "runs", "scenario")
ARGUMENTS: dict[str, Any] = {name: {} for name in BODIES} | {
    "rank": 1, "offset": 0, "content": b"", "form": "text/html", "scenarios": [{}],
}  # fmt: skip
"""Of the client's calls, by name; all others are texts."""
FILTERS = {
    "list_sessions": ("state", "device", "model", "label", "text", "cursor", "limit"),
    "search_knowledge": ("device", "num_devices", "limit"),
}


def make_call(function: Callable[..., Call[Any]]) -> Call[Any]:
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            values |= dict.fromkeys(FILTERS.get(function.__name__, ("cursor", "limit")), "x")
        else:
            values[name] = ARGUMENTS.get(name, "x")
    return function(**values)


FOLLOW = Call("GET", Follower("x").address, endpoints.as_nothing, headers=Follower("x").headers)
CALLS = [FOLLOW] + [
    make_call(function)
    for module in (endpoints, schedules)
    for _, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and get_origin(inspect.signature(function).return_annotation) is Call
]


def find(document: dict[str, Any], call: Call[Any]) -> dict[str, Any]:
    """The operation that a call reaches; fixed words win over placeholders."""
    for _, path, operation in sorted(operations(document), key=lambda one: one[1].count("{")):
        pattern = re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path))
        if re.fullmatch(pattern, call.path) and operation in document["paths"][path].values():
            found: dict[str, Any] | None = document["paths"][path].get(call.method.lower())
            if found:
                return found
    raise AssertionError(f"{call.method} {call.path} is not described")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_each_call_of_the_client_is_described(document: dict[str, Any], call: Call[Any]) -> None:
    operation = find(document, call)
    known = {parameter["name"].lower(): parameter for parameter in operation.get("parameters", [])}
    assert {name.lower() for name in call.params} <= known.keys()
    assert {name.lower() for name in call.headers} <= known.keys()
    sends_json = "application/json" in operation.get("requestBody", {}).get("content", {})
    assert sends_json is (call.json is not None)
    assert ("octet-stream" in json.dumps(operation.get("requestBody", {}))) is (call.content is not None)


def test_every_operation_has_a_call_in_the_client(document: dict[str, Any]) -> None:
    """But for what only machines or administrators ask for, and the list of all knowledge."""
    left_out = {("GET", "/healthz"), ("GET", "/metrics"), ("GET", "/v1/audit"), ("GET", "/v1/knowledge")}
    assert len(CALLS) > 40
    reached = [find(document, call) for call in CALLS]
    missing = {(method, path) for method, path, operation in operations(document) if operation not in reached}
    assert missing == left_out


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (models.Session, "SessionPublic"),
        (models.SessionWithRequest, "SessionDetail"),
        (models.SessionPage, "SessionPage"),
        (models.Event, "EventPublic"),
        (models.Export, "ExportPublic"),
        (models.Trace, "TracePublic"),
        (models.TraceFile, "FilePublic"),
        (models.TraceWithFiles, "TraceDetail"),
        (models.TracePage, "TracePage"),
        (models.Entry, "EntryPublic"),
        (models.Hit, "HitPublic"),
        (models.Hits, "HitList"),
        (schedules.Run, "RunPublic"),
        (schedules.RunPage, "RunPage"),
        (schedules.Schedule, "SchedulePublic"),
        (schedules.SchedulePage, "SchedulePage"),
    ],
)
def test_each_record_of_the_client_is_what_the_server_describes(
    document: dict[str, Any], model: type[models.Record], name: str
) -> None:
    schema = document["components"]["schemas"][name]
    own = TypeAdapter(model).json_schema()
    del own["properties"]["raw"]
    assert own["properties"].keys() <= schema["properties"].keys()
    assert set(own.get("required", [])) <= set(schema["required"])
    for field, described in own["properties"].items():
        assert kinds(described, own) == kinds(schema["properties"][field], document), field


def test_nothing_leaves_the_server_that_a_shape_does_not_name() -> None:
    shapes = Public.__subclasses__()
    assert shapes
    assert {shape.model_config["extra"] for shape in shapes} == {"ignore"}


def kinds(schema: dict[str, Any], whole: dict[str, Any]) -> set[str]:
    """The JSON types that a schema allows."""
    if "$ref" in schema:
        place: Any = whole
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[part]
        return kinds(place, whole)
    if "anyOf" in schema:
        return set().union(*(kinds(part, whole) for part in schema["anyOf"]))
    return {schema["type"]}


def test_bounds_are_in_the_words_of_json_schema(document: dict[str, Any]) -> None:
    """Generated clients pass over pydantic's own `ge` and `le`."""
    assert not re.search(r'"(ge|le|gt|lt|multiple_of)":', json.dumps(document))
    plan = document["components"]["schemas"]["SessionCreate"]["properties"]["plan"]["anyOf"][0]
    assert plan["properties"]["vpp"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 10_000}


def test_the_options_of_training_and_the_parameters_of_a_prediction_are_described(
    document: dict[str, Any],
) -> None:
    schemas = document["components"]["schemas"]
    training = schemas["ScenarioCreate"]["properties"]["training"]["properties"]
    assert set(TRAINING_OPTIONS) <= training.keys()
    assert training["lora"]["anyOf"][0]["properties"]["targets"]["minItems"] == 1
    assert "name" in schemas["ScenarioCreate"]["properties"]["cluster"]["properties"]
    counts = [schemas["Prediction"]["properties"][name] for name in ("parameters", "active_parameters")]
    assert [count["type"] for count in counts] == ["integer", "integer"]


def test_the_constraints_that_there_are_are_named(document: dict[str, Any]) -> None:
    says = document["components"]["schemas"]["SearchCreate"]["properties"]["constraints"]["description"]
    assert all(
        name in says for name in ("max_memory_fraction", "keep_checkpoint_layout", "max_changes", "space")
    )
