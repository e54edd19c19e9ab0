"""An endpoint's settings are checked once, and the key shows nowhere."""

from dataclasses import replace

import pytest

from graph.reasoner.client import LOCAL_KEY, Endpoint
from tools.errors import InputError

GOOD = Endpoint("http://localhost:8000/v1", "some-model", api_key="sk-secret")


def test_the_key_is_in_no_text_of_it() -> None:
    assert "sk-secret" not in f"{GOOD!r} {GOOD}"
    assert GOOD.key == "sk-secret"


def test_without_a_key_a_placeholder_is_sent() -> None:
    assert replace(GOOD, api_key=None).key == replace(GOOD, api_key="").key == LOCAL_KEY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_url", "localhost:8000"),
        ("base_url", "ftp://host/v1"),
        ("base_url", "http:///v1"),
        ("base_url", "http://[::1/v1"),
        ("base_url", "http://host:99999/v1"),
        ("base_url", "http://user:password@host/v1"),
        ("base_url", "http://host/v1?key=1"),
        ("model", ""),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("deadline_s", -1),
        ("max_tokens", 0),
        ("retries", -1),
        ("price_per_million_input", -0.1),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError) as raised:
        replace(GOOD, **{field: value})  # type: ignore[arg-type]
    assert raised.value.field == field
    assert "password" not in str(raised.value.given)
