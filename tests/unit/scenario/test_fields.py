"""Which field, value and rule an error of pydantic becomes."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tools.scenario.fields import Allowed, Integer, input_error


class Limit(BaseModel):
    model_config = ConfigDict(extra="forbid")
    excluded: list[int] | None = Field(None, alias="not")
    most: int | None = Field(None, alias="max")


class Inner(BaseModel):
    size: Integer = Field(ge=1, le=4000)


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    kind: Literal["round", "square"] = "round"
    inner: Inner | None = None
    rows: list[Inner] = Field(default_factory=list)
    table: dict[str, Inner] = Field(default_factory=dict)
    tp: int | list[int] | Limit | None = None
    share: float = Field(0.5, gt=0, lt=1)
    month: Annotated[str, Field(pattern="^20"), Allowed("a month")] = "2026"
    name: str = Field("", max_length=3)
    even: int = 0

    @field_validator("even")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("Must be even")
        return value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "sqare"}, "kind: got 'sqare'; allowed: round, square (did you mean square?)"),
        ({"knd": 1}, "knd: got 1; unknown field, did you mean kind?"),
        ({"inner": {}}, "inner.size: got nothing; allowed: an integer from 1 to 4,000"),
        ({"inner": 3}, "inner: got 3; allowed: a JSON object"),
        ({"rows": [{"size": 1}, {"size": 0}]}, "rows[1].size: got 0; allowed: an integer from 1 to 4,000"),
        ({"table": {"a": {"size": "x"}}}, "table.a.size: got 'x'; allowed: an integer from 1 to 4,000"),
        ({"tp": "x"}, "tp: got 'x'; allowed: an integer or an array or a JSON object"),
        ({"tp": [1, "x"]}, "tp[1]: got 'x'; allowed: an integer"),
        ({"tp": {"max": "x"}}, "tp.max: got 'x'; allowed: an integer"),
        ({"tp": {"mx": 4}}, "tp.mx: got 4; unknown field, did you mean max?"),
        ({"share": 1.0}, "share: got 1.0; allowed: a number above 0 and below 1"),
        ({"month": "June"}, "month: got 'June'; allowed: a month"),
        ({"name": "long"}, "name: got 'long'; allowed: a text of at most 3 characters"),
        ({"even": 3}, "even: got 3; must be even"),
        # A misspelt name says more than the field that is missing for it.
        ({"inner": {}, "rws": []}, "rws: got an array of 0 values; unknown field, did you mean rows?"),
    ],
)
def test_an_error_names_the_path_what_was_given_and_what_is_allowed(given: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(given)
    assert str(input_error(caught.value, Outer)) == message
    assert str(input_error(caught.value, Outer, "body")) == f"body.{message}"
    # As FastAPI hands them on, without the type.
    assert input_error(caught.value.errors()).path == message.partition(":")[0]
