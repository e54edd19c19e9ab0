"""Guessing what a misspelt name meant, and addresses of servers."""

import pytest

from tools.errors import InputError
from tools.names import did_you_mean, nearest, parse_address

SECRET = "hunter2"


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


def test_the_nearest_name_is_offered_or_all_if_none_is_near() -> None:
    known = ["hidden_size", "vocab_size", "tp", "pp"]
    assert nearest("hiden_size", known)[0] == "hidden_size"
    assert nearest("H100-SXM", ["h100-sxm", "a100"]) == ["h100-sxm"]
    assert nearest("zzzzz", known) == []
    assert did_you_mean("zzzzz", known) == "allowed: hidden_size, pp, tp, vocab_size"
