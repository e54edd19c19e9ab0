"""The generated part of the client: up to date, and complete by construction."""

import pytest

from scripts.make_client import FOLDER, Json, make_client, served_document


@pytest.fixture(scope="module")
def document() -> Json:
    return served_document()


def test_the_generated_files_are_those_of_the_served_document(document: Json) -> None:
    for name, text in make_client(document).items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is stale; run: make client"


def test_a_new_operation_and_a_new_field_reach_the_client_by_themselves(document: Json) -> None:
    session = document["components"]["schemas"]["SessionRow"]
    changed = {**session, "properties": session["properties"] | {"mood": {"type": "integer"}}}
    response = {"200": {"content": {"application/json": {"schema": {"type": "object"}}}}}
    parameters = [{"name": "id", "in": "path", "schema": {"type": "string"}}]
    added = {"summary": "Set the mood", "parameters": parameters, "responses": response}
    schemas = document["components"]["schemas"] | {"SessionRow": changed}
    texts = make_client(
        {"paths": {**document["paths"], "/v1/moods/{id}": {"put": added}}, "components": {"schemas": schemas}}
    )
    assert "mood: int | None = None" in texts["models.py"]
    assert "async def put_mood(self, id: str) -> JsonObject:" in texts["async_operations.py"]
    assert "def put_mood(self, id: str) -> JsonObject:" in texts["operations.py"]
