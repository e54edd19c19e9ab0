"""How both clients open their connections."""

from typing import Any
from urllib.parse import urlsplit

import httpx

from service import __version__
from service.client_calls import Call
from tools.errors import InputError

ANSWER_S, CONNECT_S = 60.0, 5.0
MOST_CONNECTIONS = 100


def http_options(server: str, key: str | None) -> dict[str, Any]:
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InputError("server", server, "allowed: http://host:port or https://host")
    headers = {"User-Agent": f"asap-client/{__version__}"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return {
        "base_url": server.rstrip("/"),
        "headers": headers,
        "limits": httpx.Limits(max_connections=MOST_CONNECTIONS),
    }


def request_options(call: Call[Any]) -> dict[str, Any]:
    """Of one call, for httpx."""
    body = {"json": call.json} if call.json is not None else {"content": call.content}
    timeout = httpx.Timeout(min(call.patience_s, ANSWER_S), connect=CONNECT_S)
    return {**body, "params": dict(call.params), "headers": dict(call.headers), "timeout": timeout}
