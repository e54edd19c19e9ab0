"""Schemas in the subset that endpoints agree on, from answers and from functions."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from graph.reasoner.answers import Answer, Choice, Prose, Reading, SuggestedPlan, Suggestions, Weighing
from graph.reasoner.structured import arguments_model, lax_schema, strict_schema

ANSWERS: list[type[Answer]] = [Reading, Choice, Weighing, Suggestions, Prose]


def parts(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    if isinstance(schema, dict):
        yield schema
        for one in schema.values():
            yield from parts(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from parts(one)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_strict_schema_requires_every_field_and_no_other(answer: type[Answer]) -> None:
    objects = [one for one in parts(strict_schema(answer)) if one.get("type") == "object"]
    assert objects
    for one in objects:
        assert one["required"] == list(one["properties"])
        assert one["additionalProperties"] is False


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("make", [strict_schema, lax_schema])
def test_nothing_stands_in_it_that_endpoints_refuse(answer: type[Answer], make: Any) -> None:  # noqa: ANN401
    text = json.dumps(make(answer))
    for word in ('"$ref"', '"$defs"', '"title"', '"default"', "maxLength"):
        assert word not in text


def test_an_optional_field_may_be_left_out_of_a_lax_answer_and_be_null_in_a_strict_one() -> None:
    assert "required" not in lax_schema(SuggestedPlan)
    assert {"type": "null"} in strict_schema(SuggestedPlan)["properties"]["tp"]["anyOf"]


def test_a_field_may_have_the_name_of_a_keyword() -> None:
    def find(title: str, default: int = 3) -> None:
        """Find."""

    schema = lax_schema(arguments_model("find", find))
    assert list(schema["properties"]) == ["title", "default"]
    assert schema["required"] == ["title"]


def test_arguments_are_checked_by_the_types_of_the_function() -> None:
    def explain(plan: SuggestedPlan, limit: int = 3) -> None:
        """Explain."""

    model = arguments_model("explain", explain)
    checked = model.model_validate({"plan": {"tp": 4}})
    assert checked.model_dump(exclude_none=True) == {"plan": {"tp": 4}, "limit": 3}
    for wrong in ({}, {"plan": {"tp": "x"}}, {"plan": {}, "other": 1}):
        with pytest.raises(ValidationError):
            model.model_validate(wrong)
