"""A page of a browser, and what went wrong in it: errors of scripts, refusals of the content policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Dialog, Page

REFUSALS = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) => window.refused.push(event.effectiveDirective));
"""
PLOTLY_TRIES = {"style-src-attr", "style-src-elem"}
"""Styles that Plotly would write into the page; the stylesheet has them instead."""

Cookies = Any
"""What Playwright keeps of a context and puts into another."""


@dataclass
class Watched:
    page: Page
    errors: list[str] = field(default_factory=list)

    def refused(self) -> set[str]:
        found: list[str] = self.page.evaluate("window.refused")
        return set(found) - PLOTLY_TRIES

    def take_dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def watch(browser: Browser, address: str, cookies: Cookies, **options: Cookies) -> Iterator[Watched]:
    """Whatever a script throws, or tries against the policy, fails the test."""
    context = browser.new_context(base_url=address, storage_state=cookies, reduced_motion="reduce", **options)
    context.add_init_script(REFUSALS)
    watched = Watched(context.new_page())
    watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
    watched.page.on("dialog", watched.take_dialog)
    yield watched
    refused = watched.refused()
    context.close()
    assert watched.errors == []
    assert refused == set()
