"""Cookies, and the token that proves that a form was issued to the browser that sends it."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from fastapi import Request, Response

from service.access.credentials import COOKIE
from service.errors import ForbiddenError

BROWSER_COOKIE = "asap_browser"
FIELD = "csrf"


@dataclass(frozen=True)
class Csrf:
    token: str
    new_cookie: str | None
    """To be set if the browser has none yet."""

    def set_on(self, request: Request, response: Response) -> None:
        if self.new_cookie:
            set_cookie(request, response, BROWSER_COOKIE, self.new_cookie)


def csrf_of(request: Request) -> Csrf:
    """The token is derived from the sign-in, or from a random cookie of a browser that has not signed in."""
    cookie = request.cookies.get(COOKIE) or request.cookies.get(BROWSER_COOKIE)
    secret = cookie or secrets.token_urlsafe(24)
    token = hmac.new(secret.encode(), b"asap-csrf", hashlib.sha256).hexdigest()
    return Csrf(token, None if cookie else secret)


def check_csrf(request: Request, token: str) -> None:
    expected = csrf_of(request)
    if expected.new_cookie or not hmac.compare_digest(expected.token, token):
        raise ForbiddenError("this form was not issued to this browser; load the page again")


def set_cookie(
    request: Request, response: Response, name: str, value: str, life_s: int | None = None
) -> None:
    """Not readable by scripts, not sent from other sites; over TLS only if the page came over TLS."""
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    response.set_cookie(name, value, max_age=life_s, httponly=True, samesite="lax", secure=secure, path="/")
