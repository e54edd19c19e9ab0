"""A server without keys answers this machine only: by address, by name and by the page that asks.

The name matters because a page of another site may point a name of its own at 127.0.0.1 (DNS rebinding), the
origin because a browser sends a plain form anywhere.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from service.auth.errors import ForbiddenError

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


def is_loopback(host: str) -> bool:
    """Whether this name or address is the machine itself, whatever a name server says."""
    if host.lower().rstrip(".") in _NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_local(request: HTTPConnection) -> None:
    """Raises ForbiddenError where the request is not this machine's own."""
    client = request.client.host if request.client else ""
    if not is_loopback(client):
        raise ForbiddenError("this server has no keys, so it answers its own machine only; see 'asap keys'")
    if not is_loopback(request.url.hostname or ""):
        raise ForbiddenError(f"this server has no keys, so it does not answer for {request.url.hostname}")
    origin = request.headers.get("origin")
    if request.scope["method"] not in SAFE_METHODS and origin and not is_own_origin(origin, request):
        raise ForbiddenError(f"a page of {origin} may not change anything here")


def is_own_origin(origin: str, request: HTTPConnection) -> bool:
    """Whether the page that asks came from this server; the scheme may be a proxy's."""
    try:
        given = urlsplit(origin)
        return (given.hostname, given.port) == (request.url.hostname, request.url.port)
    except ValueError:  # no address at all
        return False
