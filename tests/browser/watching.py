"""The machine's own Chromium, pages in it that are signed in, what went wrong in them, and their figures."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--disable-quic",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
"""Kept from calling home: what it looks up outside only costs time."""
FRAMES = """async (keys) => {
    const canvas = document.querySelector("[data-timeline] canvas"), frames = [];
    for (const key of keys) {
        canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        frames.push(Number(canvas.dataset.frameMs));
    }
    return frames;
}"""
"""Presses the keys one by one on the timeline; how long each took to draw, in ms."""
CONTROLS = """() => [...document.querySelectorAll(
        "a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter((one) => one.checkVisibility({ visibilityProperty: true }))
    .map((one) => one.getBoundingClientRect())
    .filter(({ top, bottom, left, right }) =>
        top < innerHeight && bottom > 0 && right > 0 && left < innerWidth)
    .length"""
"""What a person can act on in the first screen, chips and menus too."""
PATIENCE_MS = 60_000
SHOWN = "one => one.dataset.drawn || one.querySelector('.canvas.drawn p')"
REFUSALS = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) => window.refused.push(event.effectiveDirective));
"""
BY_DESIGN = ("Failed to load resource", "net::ERR_")
"""The browser reports answers like 404 and a server that is away; tests bring them about."""

Cookies = Any
"""What Playwright keeps of a context and puts into another."""


@dataclass
class Watched:
    page: Page
    errors: list[str] = field(default_factory=list)

    def refused(self) -> set[str]:
        found: list[str] = self.page.evaluate("window.refused")
        return set(found)

    def take_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(words in message.text for words in BY_DESIGN):
            self.errors.append(f"console: {message.text}")

    def take_dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def watch(browser: Browser, address: str, cookies: Cookies, **options: Cookies) -> Iterator[Watched]:
    """A script that throws, writes an error to the console or acts against the policy fails the test."""
    context = browser.new_context(base_url=address, storage_state=cookies, reduced_motion="reduce", **options)
    context.add_init_script(REFUSALS)
    context.set_default_timeout(PATIENCE_MS)  # a busy machine may take its time
    watched = Watched(context.new_page())
    watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
    watched.page.on("console", watched.take_message)
    watched.page.on("dialog", watched.take_dialog)
    yield watched
    refused = watched.refused()
    context.close()
    assert watched.errors == [], watched.errors
    assert refused == set()


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def opened(chromium: str) -> Iterator[Browser]:
    as_root = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=[*QUIET, *as_root])
        yield browser
        browser.close()


def sign_in(browser: Browser, address: str, key: str) -> Cookies:
    """The cookies of somebody who has signed in."""
    context = browser.new_context(base_url=address)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/knowledge")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Knowledge")).to_be_visible()
    kept = context.storage_state()
    context.close()
    return kept


def draw_all(page: Page) -> set[str]:
    """Scrolls to every figure; the names of those that were drawn, without those that say why not."""
    drawn = set()
    for figure in page.locator("figure[data-figure]").all():
        figure.scroll_into_view_if_needed()
        page.wait_for_function(SHOWN, arg=figure.element_handle(), timeout=PATIENCE_MS)
        if figure.get_attribute("data-drawn"):
            assert figure.locator(".u-wrap canvas").first.is_visible()
            drawn.add(str(figure.get_attribute("data-figure")).rpartition("/")[2])
    return drawn
