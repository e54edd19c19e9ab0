"""The workbench: four answers without scrolling, one selection in all views, links that restore it."""

import re
from copy import deepcopy
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.browser.gallery import LLAMA, MIXTRAL, OWN_TRACES, TOO_SMALL, TRACED, TRACES, upload
from tests.browser.installation import Installation
from tests.browser.scenes import small
from tests.browser.watching import CONTROLS, Watched

DESK: ViewportSize = {"width": 1440, "height": 900}
PYTHON = re.compile(r"\bNone\b(?! of)|\bTrue\b|\bFalse\b|\{'|\('|',\)")
LIT = "() => [...document.querySelectorAll('.lit')].map(one => one.dataset.cause ?? one.dataset.field)"


def with_training(body: dict[str, Any], **training: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a request
    changed = deepcopy(body)
    changed["training"] |= training
    return changed


@pytest.fixture(scope="module")
def kinds(installation: Installation) -> dict[str, str]:
    """Sessions of ten kinds, by what they are."""
    rejected = installation.submit(small(approval="person"))
    made = {
        "poor plan": installation.submit(LLAMA),
        "cold start": installation.submit({**MIXTRAL, "plan": None}),
        "mixture of experts": installation.submit(MIXTRAL),
        "waiting": installation.submit(small(approval="person")),
        "own traces": installation.submit({**TRACED, "traces": upload(installation, OWN_TRACES)}),
        "foreign traces": installation.submit(small(traces=upload(installation, TRACES))),
        "long sequences": installation.submit(with_training(small(), seq_len=8192)),
        "with notes": installation.submit(small(notes="Keep tp inside a node.")),
        "nothing feasible": installation.submit({**LLAMA, "plan": None, "cluster": TOO_SMALL}),
        "rejected": rejected,
    }
    installation.wait(rejected, "waiting_approval")
    with installation.api as client:
        client.post(f"/v1/sessions/{rejected}/decision", json={"action": "reject", "proposal": 1})
    for kind, id in made.items():
        states = ("waiting_approval",) if kind == "waiting" else ("completed", "failed")
        installation.wait(id, *states)
    return made


@pytest.fixture
def view(page: Watched) -> Page:
    page.page.set_viewport_size(DESK)
    return page.page


def begins_above_the_fold(part: Locator) -> bool:
    """With its first lines: what is answered, if not all of why."""
    expect(part).to_be_visible()
    box = part.bounding_box()
    return box is not None and box["y"] >= 0 and box["y"] + min(box["height"], 48) <= DESK["height"]


def test_four_answers_are_seen_without_scrolling_on_ten_kinds_of_sessions(
    view: Page, kinds: dict[str, str]
) -> None:
    for kind, id in kinds.items():
        view.goto(f"/sessions/{id}")
        why_slow, which, fits, next_step = ".verdict", "#chosen-title", "#chosen .fit", "#chosen .next"
        answers = [why_slow, "#where .versus", which, fits, next_step]
        if kind == "nothing feasible":
            answers = [".warning", "#fit .remedies"]
        hidden = [part for part in answers if not begins_above_the_fold(view.locator(part).first)]
        assert not hidden, f"{kind}: {hidden}"
        assert not PYTHON.search(view.locator("main").inner_text()), kind
        assert view.evaluate(CONTROLS) <= 25, kind


def test_a_changed_chip_is_scored_at_once_and_its_link_restores_it(view: Page, kinds: dict[str, str]) -> None:
    view.goto(f"/sessions/{kinds['mixture of experts']}?plan=1")
    yours = view.locator(".strip a.yours")
    expect(yours).to_have_count(0)
    chip = view.locator("#chosen").get_by_label("tp", exact=True)
    chip.focus()
    chip.press("ArrowDown")  # tp 2
    expect(yours).to_be_visible()
    expect(view.locator("#chosen-title")).to_have_text("Yours")
    expect(chip).to_be_focused()
    assert "tp=2" in view.url
    expect(view.locator("#time figure[data-gantt*='yours?'][data-drawn]")).to_be_visible()
    said = view.locator("#chosen").inner_text()
    view.reload()
    expect(view.locator("#chosen-title")).to_have_text("Yours")
    assert view.locator("#chosen").inner_text() == said
    view.locator(".strip a.today").click()
    expect(view.locator("#chosen-title")).to_have_text("Today")
    view.go_back()
    expect(view.locator("#chosen-title")).to_have_text("Yours")
    view.locator("#chosen").get_by_label("vpp", exact=True).select_option("20")
    expect(view.locator("#chosen [role=alert]")).to_contain_text(re.compile(r"vpp|layers|chunks"))


def test_a_cause_lights_its_bar_its_plans_the_chip_and_the_change(view: Page, kinds: dict[str, str]) -> None:
    view.goto(f"/sessions/{kinds['poor plan']}")
    cloud = view.locator("[data-cloud][data-drawn] canvas")
    expect(cloud).to_be_visible()
    step = view.locator("#time figure[data-drawn] canvas").first
    expect(step).to_be_visible()
    before, slices = (one.evaluate("one => one.toDataURL()") for one in (cloud, step))
    view.locator("#loss-tp_comm_exposed").hover()
    view.wait_for_function("() => document.querySelector('.chip.lit')")
    lit = view.evaluate(LIT)
    assert set(lit) == {"tp_comm_exposed", "tp"}
    assert len(lit) >= 3, "the bar, the chip, and the change of each plan that has one"
    assert cloud.evaluate("one => one.toDataURL()") != before
    view.wait_for_function("([one, old]) => one.toDataURL() !== old", arg=[step.element_handle(), slices])
    view.locator("#loss-tp_comm_exposed").click()
    view.wait_for_url(re.compile("cause=tp_comm_exposed"))
    view.reload()
    expect(view.locator("#loss-tp_comm_exposed")).to_have_attribute("aria-selected", "true")
    view.wait_for_function("() => document.querySelector('.chip.lit')")


def test_measured_ranks_stand_below_the_simulated_steps(view: Page, kinds: dict[str, str]) -> None:
    view.goto(f"/sessions/{kinds['own traces']}")
    measured = view.locator("#time figure[data-measured][data-drawn] canvas")
    expect(measured).to_be_visible()
    used = (
        "one => new Set(new Uint32Array(one.getContext('2d').getImageData(60, 0, 1300, 8).data.buffer)).size"
    )
    assert measured.evaluate(used) > 2, "what the ranks did is drawn"
    view.goto(f"/sessions/{kinds['foreign traces']}")
    expect(view.locator("#time figure[data-drawn]").first).to_be_visible()
    expect(view.locator("#time figure[data-measured]")).to_have_count(0)


def test_the_cloud_tells_a_plan_selects_by_a_drag_and_chooses_by_a_click(
    view: Page, kinds: dict[str, str]
) -> None:
    view.goto(f"/sessions/{kinds['mixture of experts']}")
    shown = view.locator("#cloud [data-shown]")
    expect(shown).to_have_text(re.compile(r"^[\d,]+$"))
    box = view.locator("#cloud canvas").bounding_box()
    assert box
    view.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.4 * box["height"])
    view.mouse.down()
    view.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.9 * box["height"], steps=3)
    view.mouse.up()
    expect(shown).to_contain_text(" of ")
    tip = view.locator("#cloud [data-tip]")
    for place in range(20):
        x, y = 4 + place % 5, 6 + place // 5
        view.mouse.move(box["x"] + x / 12 * box["width"], box["y"] + y / 12 * box["height"])
        if tip.is_visible():
            break
    expect(tip).to_contain_text("GiB")
    view.mouse.down()
    view.mouse.up()
    view.wait_for_url(re.compile(r"plan=p\d+"))
    expect(view.locator("#chosen-title")).to_contain_text("Plan")
    expect(view.locator("#chosen")).to_contain_text("beside proposal 1")


def test_without_a_script_the_workbench_answers_too(page: Watched, kinds: dict[str, str]) -> None:
    browser = page.page.context.browser
    assert browser
    page.page.goto("/")
    state = page.page.context.storage_state()
    context = browser.new_context(storage_state=state, java_script_enabled=False)
    plain = context.new_page()
    plain.goto(f"{page.page.url}sessions/{kinds['poor plan']}?plan=2")
    plain.locator("#chosen").get_by_label("tp", exact=True).select_option("2")
    plain.get_by_role("button", name="Score").click()
    expect(plain.locator("#chosen-title")).to_have_text("Yours")
    context.close()


def test_tabs_are_views_of_one_page_and_back_leads_through_them(view: Page, kinds: dict[str, str]) -> None:
    view.goto(f"/sessions/{kinds['poor plan']}")
    tabs, same = view.locator(".session-tabs"), "window.same === true"
    view.evaluate("window.same = true")
    for name, part in (("Plans", "[data-explorer][data-took]"), ("Figures", "figure[data-drawn]")) * 2:
        tabs.get_by_role("link", name=name).click()
        expect(view.locator(part).first).to_be_visible()
        expect(tabs.locator("[aria-current]")).to_have_text(name)
    view.go_back()
    expect(view.locator("[data-explorer][data-took]")).to_be_visible()
    tabs.get_by_role("link", name="Overview").click()
    expect(view.locator("#cloud[data-drawn] canvas")).to_be_visible()
    columns = view.locator("#workbench").evaluate(
        "one => getComputedStyle(one).gridTemplateColumns.split(' ').length"
    )
    assert columns == 3, "its styles came back with it"
    assert view.evaluate(same), "no page was loaded again"
