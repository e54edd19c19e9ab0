"""A browser without a window: asks for pages as one would, reads them, and sends their forms back."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from httpx2 import Response

from tests.unit.service.served import BASE, Served

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}</textarea></title>"


class Page(HTMLParser):
    """What a browser would make of the text: elements with their attributes, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self) -> list[str]:
        return [str(link["href"]) for link in self.all("a") if link.get("href")]


def get(served: Served, path: str, **headers: str) -> tuple[Response, Page]:
    answer = served.client.get(path, headers={**HTML, **headers}, follow_redirects=False)
    return answer, Page(answer.text)


def token(served: Served, path: str = "/sessions/new", **headers: str) -> str:
    _, page = get(served, path, **headers)
    return str(next(field["value"] for field in page.all("input") if field.get("name") == "csrf"))


def post(served: Served, path: str, fields: Mapping[str, Any], **headers: str) -> Response:
    """As a form of this server's own page."""
    sent = {**HTML, "Origin": BASE, "Content-Type": "application/x-www-form-urlencoded", **headers}
    return served.client.post(path, content=urlencode(fields), headers=sent, follow_redirects=False)


def assert_only_text(text: str, page: Page) -> None:
    """Nothing of what was given became an element, an attribute that acts, or a template."""
    assert "alert(1)" in text
    assert not [image for image in page.all("img") if image.get("src") == "x"]
    assert all(str(script.get("src", "")).startswith("/static/") for script in page.all("script"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script>alert" not in text
    assert "{{7*7}}" in page.text or "{{7*7}}" in text
