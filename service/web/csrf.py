"""The token in every form: a page of another site can make a browser send a form, but cannot know this.

Bound to the cookie that the browser signed in with or, where nobody signs in, to a random one.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from fastapi import Request, Response

from service.auth.cookies import COOKIE
from service.auth.errors import ForbiddenError

BROWSER_COOKIE = "asap_browser"
FIELD = "csrf"


@dataclass(frozen=True)
class Csrf:
    token: str
    new_cookie: str | None
    """To be set where the browser has none yet."""

    def keep(self, request: Request, response: Response) -> None:
        if self.new_cookie:
            set_cookie(request, response, BROWSER_COOKIE, self.new_cookie)


def csrf_of(request: Request) -> Csrf:
    held = request.cookies.get(COOKIE) or request.cookies.get(BROWSER_COOKIE)
    made = None if held else secrets.token_urlsafe(24)
    return Csrf(_token(held or made or ""), made)


def check_csrf(request: Request, given: str) -> None:
    known = csrf_of(request)
    if known.new_cookie or not hmac.compare_digest(known.token, given):
        raise ForbiddenError("this form is not one that this browser was given here; load the page again")


def set_cookie(
    request: Request, response: Response, name: str, value: str, life_s: int | None = None
) -> None:
    """Not readable by scripts, not sent from other sites; over TLS only where the page came over TLS."""
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    response.set_cookie(name, value, max_age=life_s, httponly=True, samesite="lax", secure=secure, path="/")


def _token(secret: str) -> str:
    return hmac.new(secret.encode(), b"asap-csrf", hashlib.sha256).hexdigest()
