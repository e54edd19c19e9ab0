"""Where a webhook may go."""

import ipaddress
import socket

import pytest

from service.addresses import RefusedAddressError, Target, is_public, parse_target, resolve
from tools.errors import InputError

PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1",
    "fec0::1", "64:ff9b:1::a00:1", "::ffff:0:10.0.0.1", "4000::1",
    "192.0.0.192", "192.0.0.9", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "::ffff:168.63.129.16",
    "64:ff9b::a83f:8110", "2002:a83f:8110::", "::ffff:0:168.63.129.16",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


def test_inner_addresses_are_told_apart_from_outer_ones() -> None:
    assert [address for address in PRIVATE + PUBLIC if is_public(ipaddress.ip_address(address))] == PUBLIC


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/x", "example.org", "http://", "https://:80/", "http://[::1", "http://example.org:99999/",
        "http://user:secret@example.org/", "http://localhost/x", "http://a.localhost/", "http://127.0.0.1/",
        "http://[::ffff:10.0.0.1]/", "http://example.org/a b", "http://example.org/\u00e9", "",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_right_is_refused_when_it_is_given(url: str) -> None:
    with pytest.raises(InputError, match="webhook") as caught:
        parse_target(url, private_allowed=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "[fd00:ec2::254]",
        "[::ffff:a9fe:a9fe]",
    ],
)
def test_a_cloud_s_metadata_is_refused_even_where_private_addresses_are_allowed(host: str) -> None:
    with pytest.raises(InputError, match="must lead to a public address"):
        parse_target(f"http://{host}/latest", private_allowed=True)
    with pytest.raises(RefusedAddressError):
        resolve(Target("http", host.strip("[]"), 80, "/"), private_allowed=True)
    assert parse_target("http://10.0.0.1/hook", private_allowed=True).host == "10.0.0.1"


def test_an_address_is_taken_apart() -> None:
    assert parse_target("https://Example.org:8443/a/b?c=d#e", private_allowed=False) == Target(
        "https", "example.org", 8443, "/a/b?c=d"
    )
    assert parse_target("http://example.org", private_allowed=False) == Target("http", "example.org", 80, "/")
    assert parse_target("http://[::1]:80/", private_allowed=True).host_header == "[::1]"
    assert Target("https", "example.org", 8443, "/").host_header == "example.org:8443"


def test_a_name_that_leads_inside_is_refused_unless_allowed() -> None:
    target = Target("http", "localhost", 80, "/")
    with pytest.raises(RefusedAddressError, match="localhost leads to"):
        resolve(target, private_allowed=False)
    assert ipaddress.ip_address(resolve(target, private_allowed=True)).is_loopback


def test_one_inner_address_among_outer_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("10.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    with pytest.raises(RefusedAddressError, match=r"10\.0\.0\.1"):
        resolve(Target("http", "rebound.example", 80, "/"), private_allowed=False)
