"""A session is declared once: a field that table, API, client, digest or page lacks fails."""

import hashlib
from typing import get_type_hints

import msgspec
import pytest
import sqlalchemy as sa
from pydantic import create_model

from asap_client.generated.models import Session
from service.db.tables import columns_of
from service.sessions.model import SessionChoices, SessionRow, sessions
from service.strict_json import JsonObject
from tests.unit.service.served import SCENARIO, Serve, Served
from tests.unit.service.web.browsing import get

STORED_BESIDE = {"search", "request_digest"}
"""Columns for queries; no field of a session."""
WIRE = {name for name, field in SessionRow.model_fields.items() if not field.exclude}
OTHER = {"name": "other", "labels": {"team": "b"}, "priority": 7, "webhook": "https://example.org/other"}


def test_every_field_is_a_column_and_every_column_a_field() -> None:
    assert {column.name for column in sessions.columns} == {*SessionRow.model_fields, *STORED_BESIDE}
    wider = create_model("Wider", __base__=SessionRow, colour=(str | None, None))
    assert {column.name for column in columns_of(wider)} - {*sessions.columns.keys()} == {"colour"}


def test_what_the_api_answers_the_client_has(served: Served) -> None:
    answered = served.client.get(f"/v1/sessions/{served.submit()}").json()
    assert answered.keys() == WIRE | {"links", "request"}
    assert get_type_hints(Session).keys() - {"raw"} == WIRE | {"links"}


def test_the_page_shows_every_field_of_the_wire(served: Served) -> None:
    _, page = get(served, f"/sessions/{served.submit()}")
    assert {name for name in WIRE if f'"{name}":' not in page.text} == set()


@pytest.mark.parametrize("name", SessionChoices.model_fields)
def test_under_one_key_no_choice_of_the_caller_may_differ(serve: Serve, name: str) -> None:
    served = serve(webhook_secret="signs")
    headers = {"Idempotency-Key": name}
    first = served.client.post("/v1/sessions", json=SCENARIO, headers=headers)
    again = served.client.post("/v1/sessions", json={**SCENARIO}, headers=headers)
    other = served.client.post("/v1/sessions", json={**SCENARIO, name: OTHER[name]}, headers=headers)
    assert (first.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert other.status_code == 409


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"plan": None, "notes": None, "mode": None},
        {"constraints": {"max_memory_fraction": 1, "tp": [2.0, 4]}},
        {"budget": {"tokens": 1000, "session_s": 60.0, "trials": 4}},
        {"id": 3.0},
    ],
)
def test_a_body_has_the_digest_that_version_0_2_gave_it(served: Served, stated: JsonObject) -> None:
    """A client whose first answer was lost in an upgrade sends the same body again."""
    id = served.submit({**SCENARIO, **stated})
    request = {name: value for name, value in {**SCENARIO, **stated}.items() if name != "budget"}
    body = [request, "advise", "none", 5, {}, stated.get("budget"), None]
    with served.app.database.read() as conn:
        row = conn.execute(sa.select(sessions.c.request, sessions.c.request_digest)).one()
    assert served.client.get(f"/v1/sessions/{id}").json()["request"] == row.request == request
    assert row.request_digest == hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


@pytest.mark.parametrize("number", [7, 7.0, "7"])
def test_a_whole_number_may_be_written_as_a_float_or_a_text(served: Served, number: object) -> None:
    id = served.submit({**SCENARIO, "priority": number, "budget": {"tokens": number}})
    session = served.client.get(f"/v1/sessions/{id}").json()
    assert (session["priority"], session["budget"]) == (7, {"tokens": 7})
