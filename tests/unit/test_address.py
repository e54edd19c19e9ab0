import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.names import parse_address

SECRET = "hunter2"


@pytest.mark.parametrize("address", ["http://localhost:8000", "https://example.org/v1", "http://[::1]:9000/"])
def test_an_address_of_http_is_taken(address: str) -> None:
    assert parse_address("ASAP_CHROMA_URL", address).geturl() == address


@pytest.mark.parametrize(
    "address",
    [
        f"ftp://me:{SECRET}@example.org",
        f"https://me:{SECRET}@example.org",
        f"me:{SECRET}@example.org",
        f"https://example.org?key={SECRET}",
        f"https://example.org#{SECRET}",
        f"https://me:{SECRET}@example.org:port",
        "https://example.org:0",
        "https://[example.org",
        "example.org",
        "",
    ],
)
def test_any_other_is_refused_and_its_secret_not_repeated(address: str) -> None:
    with pytest.raises(InputError, match=r"base_url: ") as caught:
        parse_address("base_url", address)
    assert SECRET not in str(caught.value)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse_address("base_url", text).hostname
