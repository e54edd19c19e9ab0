"""Every page for everybody: narrow, dark, by keyboard, by ear."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.gallery import TRACES, upload
from tests.browser.installation import Installation
from tests.browser.scenes import small
from tests.browser.watching import Cookies, Watched, draw_all

WIDE: ViewportSize = {"width": 1440, "height": 900}
NARROW: ViewportSize = {"width": 380, "height": 800}
GRAVE = ("serious", "critical")
TINY = {**small()["cluster"], "overrides": {"memory_gib": 2.5}}
"""Devices on which nothing fits."""
MAX_PHONE_PIXELS = 5000
NO_WIDER = "most => document.documentElement.scrollWidth <= most"
PAGES = (
    "/", "/sessions/new", "/what-if", "/compare", "/knowledge", "/fleet", "/schedules", "/schedules/new",
    "/hardware", "/hardware/h100-sxm-80gb", "/clusters", "/accuracy",
    "/docs", "/nowhere",
)  # fmt: skip


@pytest.fixture(scope="module")
def paths(installation: Installation, done: str) -> list[str]:
    """Every page, with those of a session that is done and of one that waits."""
    waits, id = installation.submit(small(approval="person")), done.rpartition("/")[2]
    installation.wait(waits, "waiting_approval")
    nothing = installation.submit(small(cluster=TINY, plan=None))
    installation.wait(nothing)
    of_session = [f"{done}/{page}" for page in ("trail", "figures", "schedule", "plans", "plans/0")]
    own = [done, *of_session, f"/sessions/{waits}", f"/sessions/{nothing}/fit", f"/what-if?session={id}"]
    own += [f"{done}/notes", f"{done}/trials", f"/topology?session={id}"]
    own.append(f"/trace?a={upload(installation, TRACES)}")
    with installation.api as client:
        case = client.get("/v1/knowledge", params={"kind": "case"}).json()["items"][0]["id"]
    return [*PAGES, *own, f"/compare?a={id}&b={id}&b_plan=today", f"/knowledge/{case}"]


def grave_faults(page: Page, *rules: str) -> list[str]:
    """By axe; by these of its rules only, if any are named. It does not list what passes: that is slow."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    found: list[dict[str, Any]] = Axe().run(page, options=options).response["violations"]
    return [
        f"{fault['id']}: {fault['nodes'][0]['html'][:200]} {fault['nodes'][0].get('failureSummary')}"
        for fault in found
        if fault["impact"] in GRAVE
    ]


def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(page: Watched, paths: list[str]) -> None:
    """Each page is opened once: axe, its colours in the other theme, then as narrow as a phone. `page` fails
    on any error of the console and on what the content policy refuses."""
    view = page.page
    for path in paths:
        view.set_viewport_size(WIDE)
        view.emulate_media(color_scheme="light")
        view.goto(path)
        draw_all(view)
        assert grave_faults(view) == [], path
        view.emulate_media(color_scheme="dark")
        expect(view.locator("html")).to_have_attribute("data-theme", "dark")
        assert grave_faults(view, "color-contrast") == [], f"{path}, dark"
        view.set_viewport_size(NARROW)
        view.wait_for_function(NO_WIDER, arg=NARROW["width"])  # figures follow a moment later
        assert view.evaluate("document.body.scrollHeight") <= MAX_PHONE_PIXELS, path


@pytest.mark.parametrize("width", [800, 1280, 1440, 1920])
def test_the_list_keeps_its_names_whole_and_its_figures_on_the_page(page: Watched, width: int) -> None:
    view = page.page
    view.set_viewport_size({"width": width, "height": 900})
    view.goto("/")
    view.wait_for_function(NO_WIDER, arg=width)
    for name in view.locator("#lines tbody th a").all()[:3]:
        box, cell = name.bounding_box(), name.locator("xpath=ancestor::th").bounding_box()
        assert box
        assert cell
        assert box["width"] <= cell["width"] >= 80
        assert box["height"] < 30, "a short name stands on one line"


def test_a_case_is_refuted_with_a_reason_that_stays(page: Watched, paths: list[str]) -> None:
    view = page.page
    view.goto(paths[-1])
    view.get_by_label("Why").fill("measured again on our racks: slower")
    view.get_by_role("button", name="Refute").click()
    expect(view.locator(".status")).to_have_text("refuted")
    expect(view.locator(".history")).to_contain_text("easured again on our racks: slower")


def test_the_content_is_one_key_away_and_every_control_is_reached(page: Watched, paths: list[str]) -> None:
    view = page.page
    view.goto(next(path for path in paths if path.startswith("/sessions/0")))
    view.keyboard.press("Tab")
    expect(view.get_by_role("link", name="Skip to the content")).to_be_focused()
    view.keyboard.press("Enter")
    reached = set()
    for _ in range(60):
        view.keyboard.press("Tab")
        reached.add(view.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
    assert {"Trail", "Why", "Export", "Approve", "Reject", "Comment or edit"} <= reached


def test_a_few_letters_lead_to_a_page_an_action_or_a_session(page: Watched, done: str) -> None:
    view = page.page
    view.goto(done)
    view.keyboard.press("?")
    expect(view.get_by_role("dialog")).to_contain_text("choose a loss")
    view.keyboard.press("Escape")
    view.keyboard.press("Control+k")
    palette = view.get_by_role("combobox", name="Go to")
    palette.fill("rena")
    palette.press("Enter")
    expect(view.get_by_label("Name", exact=True)).to_be_visible()
    view.keyboard.press("Control+k")
    palette.fill(done.rpartition("/")[2])
    expect(view.get_by_role("dialog").get_by_role("option")).to_have_count(1)
    palette.fill("hardw")
    palette.press("Enter")
    expect(view.get_by_role("heading", level=1)).to_have_text("Hardware")


def test_pages_say_what_they_are_without_any_script(
    browser: Browser, installation: Installation, signed_in: Cookies, paths: list[str]
) -> None:
    context = browser.new_context(
        base_url=installation.server.address, storage_state=signed_in, java_script_enabled=False
    )
    page = context.new_page()
    for path in paths:
        page.goto(path)
        assert page.locator("h1").count() == 1, path
    page.goto("/what-if")
    page.locator('[name="tp"]').select_option("4")
    page.get_by_role("button", name="Predict").click()
    expect(page.locator("#answer")).to_contain_text("tp 4")
    context.close()


def test_the_chosen_theme_stays_and_repaints_what_is_drawn(page: Watched, done: str) -> None:
    view = page.page
    view.emulate_media(color_scheme="dark")
    view.goto(f"{done}/schedule")
    expect(view.locator("html")).to_have_attribute("data-theme", "dark")
    go_to(view, "Theme: auto")
    expect(view.locator("html")).to_have_attribute("data-theme", "light")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    view.reload()
    expect(view.locator("html")).to_have_attribute("data-theme", "light")
    go_to(view, "Theme: light")
    go_to(view, "Theme: dark")
    expect(view.locator("[data-theme-switch]")).to_have_text("Theme: auto")


def go_to(view: Page, name: str) -> None:
    view.get_by_role("button", name="Go to").click()
    view.get_by_role("combobox", name="Go to").fill(name)
    view.keyboard.press("Enter")
